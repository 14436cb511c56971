"""A policy draws in a fixed order, its views are what they say, and its names fit the data sets."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from attnknn.errors import InvalidInput
from attnknn.train import augment
from attnknn.train.policies import POLICIES, Augmentation, policy, policy_for

EVERYTHING = Augmentation(
    pad=2, fill="zero", flip=True, rotate=20.0, brightness=0.3, contrast=0.2, saturation=0.4, hue=0.1, cutout=3
)
DATA_SETS = {"mnist": "digits", "fashion-mnist": "clothes", "cifar10": "photos", None: "photos", "": "photos"}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def some_images(*shape, dtype=torch.float32):
    return torch.rand(shape, generator=seeded(1)).to(dtype)


def crop(images, down, right, pad, fill):
    """The window of the padded images that shows them moved down and to the right."""
    height, width = images.shape[2:]
    mode = "constant" if fill == "zero" else "reflect"
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (pad, pad), (pad, pad)), mode=mode)
    return torch.from_numpy(
        padded[:, :, pad - down : pad - down + height, pad - right : pad - right + width].copy()
    )


@pytest.mark.parametrize("shape", [(8, 3, 9, 7), (8, 1, 8, 8)])
def test_changes_come_in_the_order_color_rotate_flip_shift_cutout(shape):
    images, random = some_images(*shape), seeded(5)
    before = images.clone()
    step = augment.color_jitter(images, random, brightness=0.3, contrast=0.2, saturation=0.4, hue=0.1)
    step = augment.flip(augment.rotate(step, 20.0, random), random)
    step = augment.cutout(augment.pad_crop(step, 2, random, fill="zero"), 3, random)
    assert EVERYTHING(images, seeded(5)).equal(step)
    assert not EVERYTHING(images, seeded(6)).equal(step)
    assert images.equal(before)


@pytest.mark.parametrize(
    "alone",
    [{"pad": 2}, {"flip": True}, {"rotate": 20.0}, {"brightness": 0.5}, {"contrast": 0.5}, {"cutout": 3}],
    ids=str,
)
def test_each_field_alone_changes_something(alone):
    images = some_images(8, 1, 6, 6)
    assert not Augmentation(**alone)(images, seeded()).equal(images)


def test_a_policy_without_fields_changes_nothing():
    images = some_images(4, 3, 6, 6)
    assert Augmentation()(images, seeded()).equal(images)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_result_is_of_the_same_kind_and_stays_in_0_to_1(dtype):
    images = some_images(16, 3, 8, 8, dtype=dtype).contiguous(memory_format=torch.channels_last)
    changed = EVERYTHING(images, seeded())
    assert changed.dtype == dtype
    assert changed.is_contiguous(memory_format=torch.channels_last)
    assert 0 <= changed.min() < changed.max() <= 1


BAD = {
    "pad": [-1, 1.5, True, "2", None],
    "fill": ["edge", "", None, 0],
    "flip": [1, 0, None, "yes"],
    "rotate": [-1.0, math.nan, math.inf, True, "10"],
    "brightness": [-0.1, math.nan, math.inf, True],
    "contrast": [-0.1, math.nan, None],
    "saturation": [-0.1, math.inf, "full"],
    "hue": [-0.1, 0.51, math.nan, True],
    "cutout": [-1, 2.0, False],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_quoted_with_its_name(name, value):
    with pytest.raises(InvalidInput) as refused:
        Augmentation(**{name: value})
    assert name in str(refused.value)
    assert repr(value) in str(refused.value)


def test_a_pad_that_the_images_are_too_small_for_is_refused_when_they_come():
    with pytest.raises(InvalidInput, match="4 x 9, got 4"):
        Augmentation(pad=4)(some_images(2, 1, 4, 9), seeded())


def test_a_policy_is_a_value_that_cannot_change():
    with pytest.raises(FrozenInstanceError):
        EVERYTHING.pad = 3
    assert Augmentation(pad=1) == Augmentation(pad=1) != Augmentation(pad=2)


@pytest.mark.parametrize("made", [Augmentation(), EVERYTHING, *(policy(name, 28) for name in POLICIES)], ids=str)
def test_the_state_survives_json(made):
    assert Augmentation(**json.loads(json.dumps(made.state()))) == made


@pytest.mark.parametrize("fill", augment.FILLS)
@pytest.mark.parametrize(("pad", "step"), [(1, 1), (2, 1), (3, 1), (4, 1), (8, 2)])
def test_views_of_a_policy_with_flips_are_mirror_images_and_crops(fill, pad, step):
    images = some_images(2, 3, 19, 21)
    mirrored = images.flip(3)
    got = Augmentation(pad=pad, fill=fill, flip=True, rotate=5.0).views(images)
    wanted = [images, mirrored, crop(images, -step, -step, pad, fill), crop(images, step, step, pad, fill)]
    wanted.append(crop(mirrored, -step, step, pad, fill))
    assert len(got) == 5
    for view, other in zip(got, wanted, strict=True):
        assert view.equal(other)


def test_views_of_a_policy_with_turns_are_turned_by_half_the_angle_and_crops():
    images, angle = some_images(2, 1, 10, 10), math.radians(15)
    got = Augmentation(pad=2, fill="zero", rotate=30.0).views(images)
    assert len(got) == 5
    assert got[0].equal(images)
    for view, sign in zip(got[1:3], (1, -1), strict=True):
        torch.testing.assert_close(view, augment.rotated(images, torch.full((2,), sign * angle)))
    assert got[3].equal(crop(images, -1, -1, 2, "zero"))
    assert got[4].equal(crop(images, 1, 1, 2, "zero"))


def test_views_of_a_policy_with_neither_are_crops_towards_the_corners():
    images = some_images(2, 3, 12, 9)
    got = Augmentation(pad=4, cutout=3).views(images)
    assert got[0].equal(images)
    corners = [(-1, -1), (1, 1), (-1, 1), (1, -1)]
    for view, (down, right) in zip(got[1:], corners, strict=True):
        assert view.equal(crop(images, down, right, 4, "reflect"))


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 1),
        ({"brightness": 0.5, "hue": 0.1, "cutout": 2}, 1),
        ({"flip": True}, 2),
        ({"rotate": 10.0}, 3),
        ({"pad": 4}, 1),
        ({"pad": 4, "flip": True}, 2),
        ({"pad": 4, "rotate": 10.0}, 3),
        ({"pad": 3}, 5),
    ],
)
def test_views_are_fewer_where_the_policy_or_the_image_has_no_room_for_shifts(given, count):
    images = some_images(2, 1, 20, 8)
    views = Augmentation(**given).views(images)
    assert len(views) == count
    assert views[0].equal(images)
    assert all(not other.equal(images) for other in views[1:])


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 2), (5, 3), (28, 28), (17, 40)])
def test_no_image_is_too_small_or_too_long_for_views(name, shape):
    images = some_images(3, 1, *shape, dtype=torch.bfloat16)
    for side in (2, 28, 224):
        views = policy(name, side).views(images)
        assert 1 <= len(views) <= 5
        assert all(view.shape == images.shape and view.dtype == images.dtype for view in views)


@pytest.mark.parametrize(
    ("name", "side", "wanted"),
    [
        ("photos", 32, {"pad": 4, "flip": True, "cutout": 12}),
        ("photos", 64, {"pad": 8, "flip": True, "cutout": 24}),
        ("digits", 28, {"pad": 2, "fill": "zero", "rotate": 10.0}),
        ("digits", 8, {"pad": 1, "fill": "zero", "rotate": 10.0}),
        ("clothes", 28, {"pad": 2, "fill": "zero", "flip": True, "cutout": 7}),
        ("none", 32, {}),
    ],
)
def test_a_named_policy_grows_with_the_image(name, side, wanted):
    assert policy(name, side) == Augmentation(**wanted)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("side", [2, 3, 8, 28, 32, 96])
def test_a_named_policy_can_be_used_on_images_of_its_side(name, side):
    images = some_images(3, 3, side, side + 1)
    changed = policy(name, side)(images, seeded())
    assert changed.shape == images.shape
    assert changed.isfinite().all()


@pytest.mark.parametrize(
    ("name", "side", "message"), [("photo", 32, "'photo'.*photos"), ("none", 1, "side.*got 1")]
)
def test_a_policy_that_does_not_exist_is_refused(name, side, message):
    with pytest.raises(InvalidInput, match=message):
        policy(name, side)


@pytest.mark.parametrize(("data", "name"), DATA_SETS.items())
def test_a_data_set_has_the_policy_that_suits_it(data, name):
    assert policy_for(data) == name
    assert name in POLICIES


@pytest.mark.parametrize("data", ["mnist", "digits"])
def test_digits_are_never_mirrored(data):
    assert not policy(policy_for(data), 28).flip
