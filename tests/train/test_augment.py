"""Every change equals a loop over images and pixels, its draws are as promised, and it leaves its input alone."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import scipy.stats
import torch

from attnknn.errors import InvalidInput
from attnknn.train import augment
from attnknn.train.augment import FILLS, Mixed

SHAPES = [(4, 3, 8, 8), (5, 1, 6, 9), (3, 3, 7, 5)]
VERBS = {
    "pad_crop": lambda images, random: augment.pad_crop(images, 3, random),
    "pad_crop, zero": lambda images, random: augment.pad_crop(images, 3, random, fill="zero"),
    "flip": augment.flip,
    "rotate": lambda images, random: augment.rotate(images, 30, random),
    "brightness": lambda images, random: augment.color_jitter(images, random, brightness=0.5),
    "contrast": lambda images, random: augment.color_jitter(images, random, contrast=0.5),
    "saturation": lambda images, random: augment.color_jitter(images, random, saturation=0.5),
    "hue": lambda images, random: augment.color_jitter(images, random, hue=0.5),
    "cutout": lambda images, random: augment.cutout(images, 3, random),
    "mixup": lambda images, random: augment.mixup(images, 0.8, random).images,
    "cutmix": lambda images, random: augment.cutmix(images, 0.8, random).images,
}
COLOR_ONLY = ("saturation", "hue")
every_verb = pytest.mark.parametrize("verb", VERBS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def seeded(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def some_images(shape, seed=1, dtype=torch.float64):
    return torch.rand(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def is_uniform(draws, low, high):
    """Whether draws fill all of [low, high] evenly."""
    assert low <= min(draws) < max(draws) <= high
    return scipy.stats.kstest(draws, "uniform", args=(low, high - low)).pvalue > 1e-3


def is_even(draws, values):
    """Whether each of the values, and no other, is drawn about as often as the next."""
    counts = np.array([np.sum(np.asarray(draws) == value) for value in values])
    assert counts.sum() == len(draws)
    return scipy.stats.chisquare(counts).pvalue > 1e-3


def numpy_shift(image, down, right, fill):
    _, height, width = image.shape
    around = max(abs(down), abs(right))
    padded = np.pad(image, ((0, 0), (around,) * 2, (around,) * 2), mode={"zero": "constant"}.get(fill, fill))
    return padded[:, around - down : around - down + height, around - right : around - right + width]


@every_shape
@pytest.mark.parametrize("fill", FILLS)
def test_a_shift_is_a_crop_of_the_padded_image(shape, fill):
    images = some_images(shape)
    most = min(shape[2:]) - 1
    for down in range(-most, most + 1):
        right = torch.arange(shape[0]) - 2
        got = augment.shifted(images, torch.full((shape[0],), down), right, fill=fill)
        wanted = [numpy_shift(image.numpy(), down, int(by), fill) for image, by in zip(images, right, strict=True)]
        np.testing.assert_array_equal(got.numpy(), np.stack(wanted))


def test_shifts_are_even_from_end_to_end_in_both_directions():
    image = torch.zeros(1, 1, 5, 6)
    image[..., 2, 3] = 1
    moved = augment.pad_crop(image.expand(6000, -1, -1, -1), 2, seeded(), fill="zero")
    _, _, rows, columns = moved.nonzero().T
    down, right = rows.numpy() - 2, columns.numpy() - 3
    assert is_even(5 * (down + 2) + right + 2, range(25))


@every_shape
def test_a_flip_exchanges_left_and_right_where_it_is_told_to(shape):
    images = some_images(shape)
    which = torch.arange(shape[0]) % 2 == 0
    wanted = [image[:, :, ::-1] if each else image for image, each in zip(images.numpy(), which, strict=True)]
    np.testing.assert_array_equal(augment.flipped(images, which).numpy(), np.stack(wanted))


def test_about_half_of_the_images_are_flipped():
    drawn = augment.flip(torch.tensor([0.0, 1.0]).expand(4000, 1, 1, 2), seeded())
    assert is_even(drawn[:, 0, 0, 0].numpy(), [0, 1])


def numpy_rotate(image, angle):
    """Pixel by pixel: where it comes from, and the four pixels around that."""
    _, height, width = image.shape
    turned, middle_y, middle_x = np.zeros_like(image), (height - 1) / 2, (width - 1) / 2
    for y in range(height):
        for x in range(width):
            up, right = middle_y - y, x - middle_x
            # A counterclockwise turn is undone by a clockwise one.
            from_right = right * math.cos(angle) + up * math.sin(angle)
            from_up = -right * math.sin(angle) + up * math.cos(angle)
            source_y, source_x = middle_y - from_up, middle_x + from_right
            for near_y in (math.floor(source_y), math.floor(source_y) + 1):
                for near_x in (math.floor(source_x), math.floor(source_x) + 1):
                    if 0 <= near_y < height and 0 <= near_x < width:
                        share = (1 - abs(source_y - near_y)) * (1 - abs(source_x - near_x))
                        turned[:, y, x] += share * image[:, near_y, near_x]
    return turned


@every_shape
def test_a_rotation_equals_a_loop_over_pixels(shape):
    images, angles = some_images(shape), torch.linspace(-3, 2, shape[0], dtype=torch.float64)
    wanted = [numpy_rotate(image, float(angle)) for image, angle in zip(images.numpy(), angles, strict=True)]
    np.testing.assert_allclose(augment.rotated(images, angles).numpy(), np.stack(wanted), atol=1e-12)


@every_shape
def test_a_rotation_by_0_changes_nothing(shape):
    images = some_images(shape, dtype=torch.float32)
    torch.testing.assert_close(augment.rotated(images, torch.zeros(shape[0])), images, rtol=0, atol=1e-5)
    torch.testing.assert_close(augment.rotate(images, 0.0, seeded()), images, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [7, 8])
@pytest.mark.parametrize("quarters", [-1, 1, 2, 3])
def test_quarter_turns_of_a_square_are_those_of_numpy(quarters, side):
    images = some_images((2, 3, side, side))
    angles = torch.full((2,), quarters * math.pi / 2, dtype=torch.float64)
    wanted = np.rot90(images.numpy(), quarters, axes=(2, 3))
    np.testing.assert_allclose(augment.rotated(images, angles).numpy(), wanted, atol=1e-12)


def test_angles_are_uniform():
    ramp = torch.arange(9.0).expand(3000, 1, 9, 9)
    turned = augment.rotate(ramp, 40, seeded())[:, 0]
    rightwards, downwards = turned[:, 4, 5] - turned[:, 4, 4], turned[:, 5, 4] - turned[:, 4, 4]
    angles = torch.rad2deg(torch.atan2(-downwards, rightwards))
    assert is_uniform(angles.numpy(), -40 - 1e-3, 40 + 1e-3)


def numpy_gray(pixel):
    return 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2] if len(pixel) == 3 else pixel[0]


def numpy_blend(image, factor, kind):
    _, height, width = image.shape
    grays = np.array([[numpy_gray(image[:, y, x]) for x in range(width)] for y in range(height)])
    base = {"brightness": 0 * grays, "contrast": 0 * grays + grays.mean(), "saturation": grays}[kind]
    return np.clip(factor * image + (1 - factor) * base, 0, 1)


def numpy_hue(image, turns):
    moved = np.empty_like(image)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, y, x])
            moved[:, y, x] = colorsys.hsv_to_rgb((hue + turns) % 1.0, saturation, value)
    return moved


@every_shape
@pytest.mark.parametrize("kind", ["brightness", "contrast", "saturation"])
def test_brightness_contrast_and_saturation_equal_a_loop_over_pixels(shape, kind):
    images, factors = some_images(shape), torch.linspace(0, 2.5, shape[0], dtype=torch.float64)
    gray = augment.gray(images)
    base = {"brightness": 0.0, "contrast": gray.mean(dim=(2, 3), keepdim=True), "saturation": gray}[kind]
    wanted = [
        numpy_blend(image, factor, kind) for image, factor in zip(images.numpy(), factors.numpy(), strict=True)
    ]
    np.testing.assert_allclose(augment.blended(images, factors, base).numpy(), np.stack(wanted), atol=1e-12)


def colors_with_ties():
    """Every color of three levels, as pixels: grays, and equal channels in all pairs."""
    levels = torch.cartesian_prod(*[torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)] * 3)
    return levels.T.reshape(1, 3, 3, 9)


@pytest.mark.parametrize("images", [some_images((5, 3, 4, 6)), colors_with_ties().repeat(5, 1, 1, 1)])
def test_a_shift_of_hue_is_that_of_colorsys(images):
    turns = torch.tensor([-0.5, -0.2, 0.0, 0.1, 0.5], dtype=torch.float64)
    wanted = [numpy_hue(image, by) for image, by in zip(images.numpy(), turns.numpy(), strict=True)]
    np.testing.assert_allclose(augment.hue_shifted(images, turns).numpy(), np.stack(wanted), atol=1e-12)


@pytest.mark.parametrize("turns", [-1.0, 0.0, 1.0])
def test_a_full_turn_of_hue_changes_nothing(turns):
    images = torch.cat([some_images((4, 3, 3, 9)), colors_with_ties()]).float()
    got = augment.hue_shifted(images, torch.full((5,), turns))
    torch.testing.assert_close(got, images, rtol=0, atol=1e-5)


def test_factors_of_color_are_uniform_and_never_below_0():
    count, half = 3000, torch.tensor([0.4, 0.6]).expand(3000, 1, 1, 2)
    flat = torch.full((count, 1, 1, 1), 0.25)
    assert is_uniform(
        augment.color_jitter(flat, seeded(), brightness=0.4).flatten() / 0.25, 0.6 - 1e-6, 1.4 + 1e-6
    )
    assert is_uniform(augment.color_jitter(flat, seeded(), brightness=1.5).flatten() / 0.25, -1e-6, 2.5 + 1e-6)
    contrast = augment.color_jitter(half, seeded(), contrast=0.8)
    assert is_uniform((contrast[:, 0, 0, 1] - contrast[:, 0, 0, 0]) / 0.2, 0.2 - 1e-5, 1.8 + 1e-5)
    color = torch.tensor([0.6, 0.5, 0.4])[:, None, None].expand(count, -1, -1, -1)
    saturation = augment.color_jitter(color, seeded(), saturation=0.5)
    assert is_uniform((saturation[:, 0] - saturation[:, 2]).flatten() / 0.2, 0.5 - 1e-5, 1.5 + 1e-5)
    hues = [
        colorsys.rgb_to_hsv(*pixel)[0]
        for pixel in augment.color_jitter(color, seeded(), hue=0.2).flatten(1).numpy()
    ]
    before = colorsys.rgb_to_hsv(0.6, 0.5, 0.4)[0]
    assert is_uniform([(hue - before + 0.5) % 1 - 0.5 for hue in hues], -0.2 - 1e-5, 0.2 + 1e-5)


def test_colors_change_in_the_order_brightness_contrast_saturation_hue():
    images, amounts = (
        some_images((6, 3, 5, 4)),
        {"brightness": 0.6, "contrast": 0.7, "saturation": 0.8, "hue": 0.3},
    )
    step, random = images, seeded(4)
    for name, amount in amounts.items():
        step = augment.color_jitter(step, random, **{name: amount})
    got = augment.color_jitter(images, seeded(4), **amounts)
    assert got.equal(step)
    assert 0 <= got.min() < got.max() <= 1


@pytest.mark.parametrize("name", COLOR_ONLY)
def test_one_channel_has_neither_saturation_nor_hue(name):
    images = some_images((3, 1, 4, 4))
    assert augment.color_jitter(images, seeded(), **{name: 0.5}).equal(images)


@every_shape
@pytest.mark.parametrize("size", [0, 1, 2, 5, 40])
def test_cutout_erases_a_square_as_far_as_it_is_in_the_image(shape, size):
    count, _, height, width = shape
    for corner in [(0, 0), (height - 1, width - 1), (height // 2, width // 2)]:
        images = some_images(shape)
        row, column = (torch.full((count,), at) for at in corner)
        column[0] = 1  # each image its own
        got = augment.erased(images, row, column, size, fill=-2.0)
        wanted = images.numpy().copy()
        for image, y, x in zip(wanted, row.tolist(), column.tolist(), strict=True):
            top, left = y - size // 2, x - size // 2
            image[:, max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)] = -2.0
        np.testing.assert_array_equal(got.numpy(), wanted)


def test_the_center_of_a_cutout_is_any_pixel():
    erased = augment.cutout(torch.ones(4000, 1, 4, 5), 1, seeded())
    assert erased.sum(dim=(1, 2, 3)).unique().tolist() == [19]
    assert is_even(erased.flatten(1).argmin(dim=1), range(20))
    filled = augment.cutout(torch.zeros(2, 3, 4, 5), 1, seeded(), fill=0.5)
    assert filled.sum(dim=(1, 2, 3)).tolist() == [1.5, 1.5]


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 30.0])
def test_shares_are_beta_distributed(alpha):
    shares = augment.mixup(torch.zeros(20_000, 1, 1, 1), alpha, seeded(7)).share.double().numpy()
    assert 0 <= shares.min() < shares.max() <= 1
    beta, low, high = scipy.stats.beta(alpha, alpha), 1e-5, 1 - 1e-5
    inner = shares[(shares > low) & (shares < high)]
    # Floats cannot resolve what lies near 0 and 1 for a small alpha: there it is counted.
    for end in (shares <= low, shares >= high):
        assert scipy.stats.binomtest(int(end.sum()), len(shares), beta.cdf(low)).pvalue > 1e-3
    below, between = beta.cdf(low), beta.cdf(high) - beta.cdf(low)
    assert scipy.stats.kstest(inner, lambda x: (beta.cdf(x) - below) / between).pvalue > 1e-3


@pytest.mark.parametrize("verb", [augment.mixup, augment.cutmix])
def test_partners_are_a_random_permutation(verb):
    random, images = seeded(), torch.zeros(4, 1, 2, 2)
    partners = torch.stack([verb(images, 1.0, random).partner for _ in range(1200)])
    assert partners.dtype == torch.int64
    assert partners.sort(dim=1).values.equal(torch.arange(4).expand(1200, -1))
    for row in range(4):
        assert is_even(partners[:, row], range(4))


@every_shape
def test_mixup_averages_each_image_with_its_partner(shape):
    images = some_images(shape)
    mixed = augment.mixup(images, 1.0, seeded(2))
    assert isinstance(mixed, Mixed)
    partner, share = mixed.partner.numpy(), mixed.share.double().numpy()
    wanted = [share[i] * images[i].numpy() + (1 - share[i]) * images[partner[i]].numpy() for i in range(shape[0])]
    np.testing.assert_allclose(mixed.images.numpy(), np.stack(wanted), atol=1e-6)
    assert len(set(share)) == shape[0]


@every_shape
def test_a_pasted_box_equals_a_loop_over_pixels(shape):
    count, _, height, width = shape
    images, random = some_images(shape), np.random.default_rng(0)
    for _ in range(20):
        partner, share = random.permutation(count), random.uniform(size=count)
        rows, columns = random.integers(height, size=count), random.integers(width, size=count)
        wanted, stays = images.numpy().copy(), np.ones(count)
        for i in range(count):
            tall, wide = (round(side * math.sqrt(1 - share[i])) for side in (height, width))
            for y in range(rows[i] - tall // 2, rows[i] - tall // 2 + tall):
                for x in range(columns[i] - wide // 2, columns[i] - wide // 2 + wide):
                    if 0 <= y < height and 0 <= x < width:
                        wanted[i, :, y, x] = images[partner[i], :, y, x]
                        stays[i] -= 1 / (height * width)
        told = (torch.from_numpy(each) for each in (partner, rows, columns, share))
        got, got_share = augment.pasted(images, *told)
        np.testing.assert_array_equal(got.numpy(), wanted)
        np.testing.assert_allclose(got_share.numpy(), stays, atol=1e-12)


def test_cutmix_says_exactly_how_many_pixels_stayed():
    images = torch.arange(500.0)[:, None, None, None].expand(-1, 3, 6, 10)
    mixed = augment.cutmix(images, 1.0, seeded())
    own = mixed.images == images
    assert (own | (mixed.images == images[mixed.partner])).all()
    moved = mixed.partner != torch.arange(500)
    torch.testing.assert_close(mixed.share[moved], own.float().mean(dim=(1, 2, 3))[moved])
    assert mixed.share.min() < 0.2 < 0.9 < mixed.share.max()


def test_a_box_keeps_the_area_it_was_given_where_nothing_is_clipped():
    share, middle = torch.linspace(0, 1, 101), torch.full((101,), 50)
    images = torch.zeros(101, 1, 100, 100)
    _, stays = augment.pasted(images, torch.arange(101), middle, middle, share)
    torch.testing.assert_close(stays, share, rtol=0, atol=0.011)  # half a pixel in a side of 100


@every_verb
@every_shape
def test_the_same_seed_gives_the_same_images_and_another_seed_others(verb, shape):
    images = some_images((16, *shape[1:]), dtype=torch.float32)
    before = images.clone()
    first, again, other = (VERBS[verb](images, seeded(seed)) for seed in (3, 3, 4))
    assert first.equal(again)
    assert images.equal(before)
    assert first.shape == images.shape
    assert first.dtype == images.dtype
    still = shape[1] == 1 and verb in COLOR_ONLY
    assert first.equal(other) == still
    assert first.equal(images) == still


@every_verb
def test_each_image_has_a_draw_of_its_own(verb):
    images = some_images((1, 3, 8, 8)).expand(12, -1, -1, -1)
    if verb in ("mixup", "cutmix"):  # a partner that is the same image would show nothing
        images = images + torch.arange(12)[:, None, None, None]
        changed = VERBS[verb](images, seeded()) - images
    else:
        changed = VERBS[verb](images, seeded())
    assert len(changed.flatten(1).unique(dim=0)) > 1


@every_verb
@every_shape
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_only_the_result(verb, shape, dtype):
    images = some_images(shape, dtype=dtype)
    got = VERBS[verb](images, seeded())
    assert got.dtype == dtype
    assert got.equal(VERBS[verb](images.float(), seeded()).to(dtype))


@every_verb
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_in_memory_is_kept_and_does_not_matter(verb, layout):
    images = some_images((4, 3, 8, 6), dtype=torch.float32)
    got = VERBS[verb](images.contiguous(memory_format=layout), seeded())
    assert got.is_contiguous(memory_format=layout)
    torch.testing.assert_close(got, VERBS[verb](images, seeded()), rtol=0, atol=1e-6)


@every_verb
def test_no_images_are_no_problem(verb):
    assert VERBS[verb](torch.zeros(0, 3, 8, 8), seeded()).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    "images", [torch.zeros(3, 8, 8), torch.zeros(2, 2, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)], ids=str
)
@every_verb
def test_what_is_no_batch_of_images_is_quoted(verb, images):
    with pytest.raises(InvalidInput) as refused:
        VERBS[verb](images, seeded())
    assert f"{tuple(images.shape)} of {images.dtype}" in str(refused.value)


REFUSED = [
    (lambda x, r: augment.pad_crop(x, 5, r), r"pad must be smaller than each side of the images, 5 x 8, got 5"),
    (lambda x, r: augment.pad_crop(x, -1, r), "pad must be a whole number of at least 0, got -1"),
    (lambda x, r: augment.pad_crop(x, 1, r, fill="edge"), "fill must be one of reflect, zero, got 'edge'"),
    (lambda x, r: augment.rotate(x, -10, r), "degrees must be .* got -10"),
    (lambda x, r: augment.rotate(x, math.inf, r), "degrees must be .* finite, got inf"),
    (lambda x, r: augment.color_jitter(x, r, contrast=-0.1), "contrast must be .* got -0.1"),
    (lambda x, r: augment.color_jitter(x, r, brightness=math.nan), "brightness must be .* got nan"),
    (lambda x, r: augment.color_jitter(x, r, hue=0.6), r"hue must be .* at most 0\.5, got 0\.6"),
    (lambda x, r: augment.cutout(x, 2.5, r), "size must be .* got 2.5"),
    (lambda x, r: augment.mixup(x, 0.0, r), r"alpha must be above 0 and finite, got 0\.0"),
    (lambda x, r: augment.cutmix(x, math.inf, r), "alpha must be above 0 and finite, got inf"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_a_bad_argument_is_quoted(call, message):
    with pytest.raises(InvalidInput, match=message):
        call(torch.zeros(2, 3, 5, 8), seeded())


def test_a_generator_elsewhere_is_named():
    with pytest.raises(InvalidInput, match="device of the images, meta, got cpu"):
        augment.flip(torch.zeros(2, 3, 4, 4, device="meta"), seeded())


def told(shape, seed=5):
    """What each pure function is told, for images of that shape, by name."""
    count, channels, height, width = shape
    random = np.random.default_rng(seed)
    images = some_images(shape, dtype=torch.float32)
    rows, columns = (torch.from_numpy(random.integers(side, size=count)) for side in (height, width))
    partner, share = torch.from_numpy(random.permutation(count)), torch.rand(count, generator=seeded(seed))
    calls = {
        "shifted": (images, rows - height // 2, columns - width // 2),
        "flipped": (images, rows > 2),
        "rotated": (images, 6 * share),
        "blended": (images, 2 * share, 0.0),
        "gray": (images,),
        "erased": (images, rows, columns, 3),
        "averaged": (images, partner, share),
        "pasted": (images, partner, rows, columns, share),
    }
    return {**calls, "hue_shifted": (images, share)} if channels == 3 else calls


def on(device, given):
    return [each.to(device) if isinstance(each, torch.Tensor) else each for each in given]


@every_shape
def test_nothing_looks_at_values_on_the_device(shape):
    # Tensors on the meta device have no values: whoever asks for one gets an error.
    for name, given in told(shape).items():
        result = getattr(augment, name)(*on("meta", given))
        assert (result[0] if name == "pasted" else result).shape[2:] == shape[2:], name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_shape
def test_a_gpu_changes_images_as_the_cpu_does(shape):
    for name, given in told(shape).items():
        function = getattr(augment, name)
        here, there = function(*given), function(*on("cuda", given))
        torch.testing.assert_close(there, here, rtol=0, atol=1e-5, check_device=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@every_verb
def test_drawing_on_a_gpu_repeats_and_never_waits_for_it(verb):
    images = some_images((64, 3, 8, 8), dtype=torch.float32).cuda()
    first, random = VERBS[verb](images, seeded(3, "cuda")), seeded(3, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = VERBS[verb](images, random)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(again, first)
    assert not first.equal(images)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_shares_drawn_on_a_gpu_are_beta_distributed(alpha):
    shares = augment.mixup(torch.zeros(5000, 1, 1, 1, device="cuda"), alpha, seeded(7, "cuda")).share
    assert scipy.stats.kstest(shares.cpu().double().numpy(), scipy.stats.beta(alpha, alpha).cdf).pvalue > 1e-3
