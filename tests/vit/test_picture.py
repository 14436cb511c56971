"""Pictures of kept tokens: that they show the very image, and each token at its place and in its rank."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from attnknn.errors import InvalidInput
from attnknn.vit import ViT
from attnknn.vit.picture import kept_picture, write_kept

pytestmark = pytest.mark.usefixtures("one_thread")

SVG = "{http://www.w3.org/2000/svg}"
AMBER, BLUE = np.array([255, 170, 0]), np.array([0, 200, 255])


def photo(height=32, width=32, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def keeps(tokens, own, asked):
    """(tokens, K) where the token asked about keeps its own, and every other something else."""
    kept = np.full((tokens, len(own)), tokens - 1)
    kept[asked] = own
    return kept


def panels(svg):
    """The groups of the blocks, each as the texts above it and what is drawn on the image."""
    root = ElementTree.fromstring(svg)
    return [group for group in root.findall(f"{SVG}g") if "translate" in group.get("transform", "")]


def ranked(panel):
    """Rank of each token by row and column, from the words on them; None for the class token."""
    found = {}
    for group in panel.iter(f"{SVG}g"):
        words = group.findtext(f"{SVG}title") or ""
        if match := re.fullmatch(r"rank (\d+): (?:row (\d+), column (\d+)|the class token)", words):
            rank, row, column = match.groups()
            found[None if row is None else (int(row), int(column))] = (int(rank), group)
    return found


def texts(panel):
    return ["".join(each.itertext()) for each in panel.iter(f"{SVG}text")]


def box(rect):
    return [float(rect.get(name)) for name in ("x", "y", "width", "height")]


# --- SVG ----------------------------------------------------------------------------------------------------


def test_the_image_is_part_of_the_picture_once_and_nothing_comes_from_elsewhere():
    image = photo()
    svg = kept_picture(image, [keeps(17, [1, 2], 1)] * 3, (4, 4), (0, 0), True)
    (uri,) = re.findall(r'href="data:image/png;base64,([^"]+)"', svg)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(uri)))), image)
    (name,) = re.findall(r'<image id="([^"]+)"', svg)
    assert svg.count(f'<use href="#{name}"/>') == 3
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    other = kept_picture(photo(seed=1), [None], (4, 4), (0, 0), True)
    assert name not in other  # else two pictures on a page would show one image


@pytest.mark.parametrize("class_token", [True, False])
def test_each_kept_token_stands_at_its_place_with_its_rank(class_token):
    first, asked = int(class_token), int(class_token) + 2 * 4 + 1
    own = [first + 3, asked, first + 15, first + 4]
    (panel,) = panels(kept_picture(photo(), [keeps(16 + first, own, asked)], (4, 4), (2, 1), class_token))
    found = ranked(panel)
    assert {place: rank for place, (rank, _) in found.items()} == {(0, 3): 1, (2, 1): 2, (3, 3): 3, (1, 0): 4}
    for (row, column), (rank, group) in found.items():
        x, y, wide, tall = box(group.find(f"{SVG}rect"))
        side = 260 / 4
        assert (x + wide / 2, y + tall / 2) == pytest.approx(((column + 0.5) * side, (row + 0.5) * side), abs=0.02)
        assert side - 2 < wide <= side
        assert group.findtext(f"{SVG}text") == str(rank)
    outlines = [rect for rect in panel.iter(f"{SVG}rect") if rect.get("fill") == "none"]
    assert [box(rect) for rect in outlines] == [pytest.approx([65, 130, 65, 65], abs=0.02)] * 2


def test_the_nearest_is_the_strongest():
    (panel,) = panels(kept_picture(photo(), [keeps(16, list(range(9)), 5)], (4, 4), (1, 1), False))
    by_rank = sorted(ranked(panel).values(), key=lambda found: found[0])
    tints = [float(group.find(f"{SVG}rect").get("fill-opacity")) for _, group in by_rank]
    assert tints == sorted(set(tints), reverse=True)
    assert 0.6 < tints[0] < 0.9
    assert tints[-1] > 0.1


def test_everything_else_is_veiled():
    (panel,) = panels(kept_picture(photo(), [keeps(17, [0, 4, 4, 9], 6)], (4, 4), (1, 1), True))
    (veil,) = panel.iter(f"{SVG}path")
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", veil.get("d"))
    pieces = [tuple(map(float, each)) for each in found]
    assert veil.get("fill-rule") == "evenodd"
    assert pieces[0] == (0, 0, 260, 260)
    # A token that appears twice would be veiled again.
    assert {(x / 65, y / 65) for x, y, *_ in pieces[1:]} == {(3, 0), (0, 2), (1, 1)}
    assert len(pieces) == 4


def test_the_class_token_stands_beside_the_image_where_it_is_kept():
    kept = [keeps(17, [5, 0, 6], 1), keeps(17, [5, 7, 6], 1)]
    with_it, without = panels(kept_picture(photo(), kept, (4, 4), (0, 0), True))
    rank, group = ranked(with_it)[None]
    assert rank == 2
    x, y, wide, _ = box(group.find(f"{SVG}rect"))
    assert x + wide == pytest.approx(259.5)
    assert y < 40  # above the image, which begins at 44
    assert "class token" in texts(with_it)
    assert None not in ranked(without)
    assert "class token" not in texts(without)
    patch_zero = panels(kept_picture(photo(), [keeps(16, [5, 0], 1)], (4, 4), (0, 1), False))[0]
    assert ranked(patch_zero)[0, 0][0] == 2


def test_blocks_have_titles_and_say_what_they_do():
    kept = [keeps(16, [3, -1, -1], 0), None, keeps(16, [3, 4, -1], 0), keeps(16, [-1, -1, -1], 0)]
    names = ["ConvNNAttention", "Attention", "Kvt<&>", "Other"]
    drawn = panels(kept_picture(photo(), kept, (4, 4), (0, 0), False, names=names))
    assert [texts(panel)[:2] for panel in drawn] == [
        ["Block 1 of 4", "ConvNNAttention · keeps 1 token"],
        ["Block 2 of 4", "Attention · no selection"],
        ["Block 3 of 4", "Kvt<&> · keeps 2 tokens"],
        ["Block 4 of 4", "Other · keeps 0 tokens"],
    ]
    assert [len(ranked(panel)) for panel in drawn] == [1, 0, 2, 0]
    assert [len(list(panel.iter(f"{SVG}path"))) for panel in drawn] == [1, 0, 1, 1]
    plain = panels(kept_picture(photo(), kept, (4, 4), (0, 0), False))
    assert texts(plain[1]) == ["Block 2 of 4", "no selection"]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12])
def test_panels_lie_side_by_side_and_within_the_picture(count):
    svg = kept_picture(photo(), [None] * count, (4, 4), (0, 0), True)
    width, height = (float(each) for each in re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
    corners = [tuple(map(float, re.findall(r"[\d.]+", panel.get("transform")))) for panel in panels(svg)]
    assert len(set(corners)) == count
    assert all(x + 260 <= width and y + 44 + 260 <= height for x, y in corners)
    for at, (x, y) in enumerate(corners):
        for left, top in corners[:at]:
            assert x >= left + 260 or y >= top + 304 or left >= x + 260


@pytest.mark.parametrize(("shape", "patch", "grid"), [((30, 41), (8, 7), (4, 6)), ((8, 100), (8, 10), (1, 10))])
def test_patches_may_reach_beyond_the_image(shape, patch, grid):
    image, tokens = photo(*shape), grid[0] * grid[1]
    svg = kept_picture(image, [keeps(tokens, [tokens - 1], 0)], grid, (0, 0), False, patch_size=patch)
    scale = 260 / max(grid[0] * patch[0], grid[1] * patch[1])
    shown = re.search(r'<image [^>]* width="([\d.]+)" height="([\d.]+)"', svg).groups()
    assert [float(each) for each in shown] == pytest.approx([scale * shape[1], scale * shape[0]], abs=0.01)
    x, y, wide, tall = box(ranked(panels(svg)[0])[grid[0] - 1, grid[1] - 1][1].find(f"{SVG}rect"))
    corner = (grid[1] * patch[1] * scale, grid[0] * patch[0] * scale)
    assert (x + wide, y + tall) == pytest.approx(corner, abs=0.6)


def test_numbers_are_left_out_where_tokens_are_too_small_to_read():
    for side, numbered in ((28, True), (64, False)):
        kept = keeps(side * side, [1, 2, 3], 0)
        (panel,) = panels(kept_picture(photo(128, 128), [kept], (side, side), (0, 0), False))
        assert [group.find(f"{SVG}text") is not None for _, group in ranked(panel).values()] == [numbered] * 3


def test_small_images_show_their_pixels_and_large_ones_are_smooth():
    assert "pixelated" in kept_picture(photo(32, 32), [None], (4, 4), (0, 0), True)
    assert "pixelated" not in kept_picture(photo(224, 224), [None], (4, 4), (0, 0), True)


def test_a_model_and_its_picture_say_the_same():
    torch.manual_seed(0)
    layers = ["ConvNNAttention", "LocalAttention", "KvtAttention"]
    model = ViT(layers, img_size=32, patch_size=8, num_layers=3, d_hidden=12, d_mlp=24, K=4, num_heads=2).eval()
    image = photo()
    kept = model.kept_tokens(torch.from_numpy(image).permute(2, 0, 1)[None] / 255.0)
    head = [None if each is None else each[0, 1] for each in kept]
    drawn = panels(kept_picture(image, head, model.grid_size, (3, 2), True, names=model.layers))
    for panel, each in zip(drawn, head, strict=True):
        expected = {} if each is None else {index: rank + 1 for rank, index in enumerate(each[1 + 14].tolist())}
        found = {0 if at is None else 1 + 4 * at[0] + at[1]: rank for at, (rank, _) in ranked(panel).items()}
        assert found == expected
    assert sum(bool(ranked(panel)) for panel in drawn) == 2


# --- files --------------------------------------------------------------------------------------------------


def test_files_are_what_their_names_say(tmp_path):
    given = (photo(), [keeps(17, [4, 0], 6), None], (4, 4), (1, 1), True)
    svg = kept_picture(*given, names=["<b>", "x"])
    write_kept(tmp_path / "kept.svg", *given, names=["<b>", "x"])
    assert (tmp_path / "kept.svg").read_text("utf-8") == svg
    write_kept(str(tmp_path / "kept.HTML"), *given, names=["<b>", "x"])
    page = (tmp_path / "kept.HTML").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert svg in page
    tags = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: tags.append(tag)
    reader.feed(page)
    assert "b" not in tags
    assert not {"script", "link", "img"} & set(tags)


def painted(tmp_path, *given, **options):
    write_kept(tmp_path / "kept.png", *given, **options)
    return np.asarray(Image.open(tmp_path / "kept.png")).astype(float)


def test_pixels_are_tinted_by_rank_veiled_and_outlined(tmp_path):
    image = np.full((256, 256, 3), 200, np.uint8)
    pixels = painted(tmp_path, image, [keeps(16, [3, 0, 15], 5)], (4, 4), (1, 1), False)
    assert pixels.shape == (256 + 18, 256 + 18, 3)
    inside = pixels[9:-9, 9:-9]

    def middle(row, column):
        return inside[64 * row + 32, 64 * column + 32]

    blue = [middle(*at)[2] / 200 for at in ((0, 3), (0, 0), (3, 3))]  # amber has none
    assert blue == pytest.approx([0.28, 0.55, 0.82], abs=0.01)
    np.testing.assert_allclose(middle(0, 3), 0.28 * 200 + 0.72 * AMBER, atol=0.51)
    np.testing.assert_allclose(middle(2, 2), 0.55 * 200, atol=0.51)
    np.testing.assert_array_equal(middle(1, 1), 200)
    for corner in ((64, 64), (64, 127), (127, 64), (127, 127)):
        np.testing.assert_array_equal(inside[corner], BLUE)
    np.testing.assert_allclose(inside[63, 64], 0.55 * 200, atol=0.51)
    assert (pixels[:9] == 255).all()


def test_pixels_of_a_block_that_does_not_select_are_the_image(tmp_path):
    image = photo(40, 24)
    pixels = painted(tmp_path, image, [None], (5, 3), (4, 2), False)
    shown = pixels[9:-9, 9:-9]
    times = shown.shape[0] // 40
    assert shown.shape == (40 * times, 24 * times, 3)
    asked = np.zeros(shown.shape[:2], bool)
    asked[32 * times :, 16 * times :] = True
    large = image.repeat(times, axis=0).repeat(times, axis=1)
    np.testing.assert_array_equal(shown[~asked], large[~asked])
    assert (shown[asked] == BLUE).all(axis=-1).any()


def test_pixels_show_the_class_token_beside_the_image_and_gray_images_too(tmp_path):
    image = photo(260, 260, 1)
    kept = [keeps(17, [1, 0], 1), keeps(17, [0, 1], 1), keeps(17, [1, 2], 1), None, keeps(17, [0, 1], 1)]
    pixels = painted(tmp_path, image, kept, (4, 4), (0, 0), True)
    wide, tall = 260 + 18 + 36, 260 + 18
    assert pixels.shape == (2 * tall, 4 * wide, 3)
    blue = [pixels[at // 4 * tall + 15, at % 4 * wide + 260 + 18 + 5, 2] for at in range(5)]
    assert blue == pytest.approx([255 * 0.75, 0, 255, 255, 0], abs=1)
    assert (pixels[tall:, wide:] == 255).all()  # no more blocks


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [(4, 0), (0, 6), (-1, 0), (0, -1)])
def test_a_token_outside_of_the_grid_is_refused(token):
    with pytest.raises(InvalidInput, match=rf"token {token[0]},{token[1]} .* rows 0 to 3, columns 0 to 5"):
        kept_picture(photo(), [None], (4, 6), token, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kept": []}, "at least one block, and a name for each, got 0 blocks"),
        ({"names": ["a", "b"]}, "got 1 blocks and 2 names"),
        ({"kept": [np.zeros((16, 3), int)]}, r"expected indices \(17, K\) .* shape \(16, 3\)"),
        ({"kept": [torch.zeros(2, 17, 3, dtype=torch.int64)]}, r"shape \(2, 17, 3\)"),
        ({"kept": [np.zeros((17, 3))]}, "got float64"),
        ({"kept": [np.full((17, 1), 17)]}, r"tokens 0 to 16, got \[17\]"),
        ({"kept": [np.full((17, 1), -2)]}, r"got \[-2\]"),
        ({"patch_size": (8, 16)}, "patches of 8 x 16 do not cut an image of 32 x 32 into 4 x 4"),
        ({"image": np.zeros((32, 32, 3))}, "expected uint8 pixels .* float64"),
        ({"image": np.zeros((32, 32, 4), np.uint8)}, r"shape \(32, 32, 4\)"),
        ({"image": np.zeros((32, 32), np.uint8)}, r"shape \(32, 32\)"),
    ],
)
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(change, message, suffix, tmp_path):
    given = {"image": photo(), "kept": [None], "grid": (4, 4), "token": (0, 0), "class_token": True, **change}
    with pytest.raises(InvalidInput, match=message):
        write_kept(tmp_path / f"kept.{suffix}", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["kept.jpg", "kept", "svg"])
def test_other_kinds_of_files_are_refused(name, tmp_path):
    with pytest.raises(InvalidInput, match=rf"{name}: expected a name that ends in one of: .svg, .html, .png"):
        write_kept(tmp_path / name, photo(), [None], (4, 4), (0, 0), True)
