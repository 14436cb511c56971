"""Figures are checked, their ticks are round, and both ways of drawing show every number inside the frame."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnknn.errors import InvalidInput, MissingExtra
from attnknn.metrics import reliability_curve
from attnknn.study.figures import Bars, Lines, Matrix, Reliability, Series, log_ticks, said, tick_text, ticks
from attnknn.study.rendered import write_figure
from attnknn.study.svg import COLORS, DASHES, STYLE, WIDTH, svg

NAN, INF = math.nan, math.inf
LONG = tuple(f"attention+tta+k-ensemble{at:02d}"[-24:] for at in range(12))


def lines(**more):
    k = (1.0, 5.0, 15.0, 50.0)
    series = (
        Series("attention", k, (0.931, 0.952, 0.9573, 0.944), (0.92, 0.94, 0.95, 0.93), (0.94, 0.96, 0.97, 0.95)),
        Series("uniform", k, (0.931, NAN, 0.921, 0.887)),
    )
    return Lines(**{"title": "Accuracy by k", "x_label": "k", "y_label": "accuracy", "series": series, **more})


def bars(**more):
    values = (0.9512, 0.9377, NAN, 0.9648)
    given = {
        "names": ("attention", "uniform", "cnn", "hgb"),
        "values": values,
        "low": tuple(value - 0.004 for value in values),
        "high": tuple(value + 0.005 for value in values),
        "published": (None, 0.941, 0.97, None),
    }
    return Bars(**{"title": "Accuracy", "y_label": "accuracy", **given, **more})


def reliability():
    draw = np.random.default_rng(0)
    sure = draw.uniform(0.5, 1, 400)
    labels = (draw.random(400) > sure**2).astype(np.int64)
    return Reliability.of(reliability_curve(np.column_stack([sure, 1 - sure]), labels, 10), "Reliability")


def matrix(classes=3, most=100):
    counts = np.random.default_rng(classes).integers(0, most, (classes, classes))
    return Matrix("Confusion", tuple(f"class {at}" for at in range(classes)), tuple(map(tuple, counts.tolist())))


EXAMPLES = {
    "lines": lines(),
    "lines with logarithms": lines(log_x=True, log_y=True, note="A note that is so long that it needs two rows."),
    "one point": lines(series=(Series("a", (3.0,), (0.5,), (0.4,), (0.7,)),)),
    "no value": lines(series=(Series("a", (1.0, 2.0), (NAN, NAN)),)),
    "one value": lines(series=(Series("a", (1.0, 2.0, 3.0), (0.25, 0.25, 0.25)),)),
    "wide ticks": lines(series=(Series("a", (0.0, 1.0), (123456.0, -98765.0)),)),
    "eight long names": lines(
        series=tuple(Series(name, (1.0, 2.0), (at, at + 1.0)) for at, name in enumerate(LONG[:8]))
    ),
    "many points": lines(
        series=(Series("a", tuple(map(float, range(300))), tuple(0.99**at for at in range(300))),)
    ),
    "bars": bars(),
    "twelve bars": Bars(
        "A title that is so long that it needs two rows",
        "NLL",
        LONG,
        tuple(0.1 * at for at in range(12)),
        None,
        None,
    ),
    "bars on both sides": bars(values=(-0.5, 0.25, NAN, 0.1), low=None, high=None, published=None),
    "bars not run": Bars("Accuracy", "accuracy", ("a", "b"), (NAN, NAN), (NAN, NAN), (NAN, NAN)),
    "reliability": reliability(),
    "reliability of few rows": Reliability("Few", (NAN, 0.75), (NAN, 1.0), (0, 2), (0.0, 0.5, 1.0)),
    "reliability of none": Reliability("None", (NAN,), (NAN,), (0,), (0.0, 1.0)),
    "matrix": matrix(),
    "matrix of twelve": matrix(12, 5000),
    "matrix of forty": matrix(40),
    "matrix of one": Matrix("Confusion", ("a name longer than its cell",), ((0,),)),
}
every = pytest.mark.parametrize("figure", EXAMPLES.values(), ids=EXAMPLES.keys())


def parsed(figure):
    # Inline SVG carries its namespace, which only the search for tags needs to forget.
    return ElementTree.fromstring(svg(figure).replace(' xmlns="http://www.w3.org/2000/svg"', ""))


def titles(figure):
    return [each.text for each in parsed(figure).iter("title")]


def of_class(figure, kind):
    return [each for each in parsed(figure).iter() if kind in each.get("class", "").split()]


def placed(root):
    """Every element with the shift and the turn that its ancestors and itself give it."""
    todo = [(root, 0.0, 0.0, False)]
    while todo:
        element, x, y, turned = todo.pop()
        shift = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        if shift:
            x, y, turned = x + float(shift[1]), y + float(shift[2]), "rotate" in element.get("transform")
        yield element, x, y, turned
        todo += [(child, x, y, turned) for child in element]


def text_boxes(figure):
    """Left, top, right, bottom of each text, with letters 0.56 of 13 wide, as system fonts have them."""
    for element, x, y, turned in placed(parsed(figure)):
        if element.tag != "text":
            continue
        x, y = x + float(element.get("x", 0)), y + float(element.get("y", 0))
        words, kinds = element.text or "", element.get("class", "").split()
        wide = 0.56 * (12.4 if "p-small" in kinds else 13) * (len(words) - words.count(".") / 2)
        before = wide if "p-end" in kinds else wide / 2 if "p-middle" in kinds else 0.0
        box = (-before, -10.0, wide - before, 3.0)
        yield (
            (x + box[1], y - box[2], x + box[3], y - box[0])
            if turned
            else (x + box[0], y + box[1], x + box[2], y + box[3])
        )


def corners(figure):
    """Corners of everything that is drawn, relative moves left out."""
    for element, x, y, _ in placed(parsed(figure)):
        at = {name: float(element.get(name, 0)) for name in ("x", "y", "x1", "y1", "x2", "y2", "width", "height")}
        if element.tag == "rect":
            yield from ((x + at["x"], y + at["y"]), (x + at["x"] + at["width"], y + at["y"] + at["height"]))
        elif element.tag == "line":
            yield from ((x + at["x1"], y + at["y1"]), (x + at["x2"], y + at["y2"]))
        elif element.tag == "path":
            for move in re.findall(r"[ML](-?[\d.]+)[ ,]?(-?[\d.]+)", element.get("d")):
                yield x + float(move[0]), y + float(move[1])


@every
def test_a_drawing_is_whole_and_lies_inside_its_frame(figure):
    root = parsed(figure)
    assert (root.tag, root.get("role"), root.get("aria-label")) == ("svg", "img", figure.title)
    left, top, width, height = map(float, root.get("viewBox").split())
    assert (left, top, width) == (0, 0, WIDTH)
    assert all(0 <= x <= width and 0 <= y <= height for x, y in corners(figure))
    for box in text_boxes(figure):
        assert box[0] >= 0 <= box[1]
        assert box[2] <= width
        assert box[3] <= height


@every
def test_no_text_covers_another(figure):
    boxes = list(text_boxes(figure))
    for at, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:at]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


@every
def test_a_drawing_needs_nothing_from_elsewhere_and_no_script(figure):
    text = svg(figure).replace('xmlns="http://www.w3.org/2000/svg"', "") + STYLE
    assert not re.search(r"http|url\(|@import|<script|href|\son\w+=|nan", text)


def test_text_has_at_least_11_pixels_on_a_figure_of_320():
    base = float(re.search(r"font: ([\d.]+)px", STYLE)[1])
    parts = [float(part) for part in re.findall(r"font-size: ([\d.]+)em", STYLE)]
    assert base * min(1, *parts) * 320 / WIDTH >= 11
    # A container that is wider by some factor may shrink the units by no more than that.
    for least, size in re.findall(r"min-width: (\d+)px\) \{ \.plot \{ font-size: ([\d.]+)px", STYLE):
        assert float(size) * min(1, *parts) * float(least) / WIDTH >= 11


def test_every_point_says_its_name_place_value_and_interval():
    found = titles(lines())
    assert "attention: k 15, accuracy 0.9573 [0.95, 0.97]" in found
    assert "uniform: k 50, accuracy 0.887" in found
    assert len(found) == 7
    assert len(titles(EXAMPLES["many points"])) == 300


def test_every_bar_says_its_value_interval_and_what_was_published():
    assert titles(bars()) == [
        "attention: accuracy 0.9512 [0.9472, 0.9562]",
        "uniform: accuracy 0.9377 [0.9337, 0.9427], published 0.941",
        "cnn: not run, published 0.97",
        "hgb: accuracy 0.9648 [0.9608, 0.9698]",
    ]


def test_every_bin_and_every_cell_says_its_numbers():
    figure = reliability()
    for at, count in enumerate(figure.count):
        right = f"accuracy {said(figure.accuracy[at], figure.interval(at))}"
        assert (f"{count} rows: confidence {said(figure.confidence[at])}, {right}" in titles(figure)) == (
            count > 0
        )
    assert titles(Matrix("C", ("cat", "dog"), ((3, 1), (0, 1234)))) == [
        "cat, answered cat: 3 rows, 75 %",
        "cat, answered dog: 1 rows, 25 %",
        "dog, answered cat: 0 rows, 0 %",
        "dog, answered dog: 1,234 rows, 100 %",
    ]


@pytest.mark.parametrize(
    "figure",
    [
        lines(title="<b>&\"'", series=(Series("<i>&", (1.0,), (1.0,)),), x_label="<x>", y_label="<y>", note="<n>"),
        bars(title="<b>&\"'", names=("<i>&", "b", "c", "d"), note="<n>"),
        Matrix("<b>&\"'", ("<i>&", "b"), ((1, 0), (0, 1))),
    ],
    ids=["lines", "bars", "matrix"],
)
def test_names_are_text_and_never_markup(figure):
    root = parsed(figure)
    assert root.get("aria-label") == figure.title
    assert {each.tag for each in root.iter()} <= {"svg", "g", "title", "text", "path", "line", "rect"}
    assert any("<i>&" in (each.text or "") for each in root.iter("title"))


def test_a_missing_value_breaks_the_line_and_has_no_mark():
    figure = lines(series=(Series("a", (1.0, 2.0, 3.0, 4.0, 5.0), (1.0, 2.0, NAN, 4.0, 5.0)),))
    groups = of_class(figure, "p-series")
    assert [len([p for p in groups[0] if p.get("class") == kind]) for kind in ("p-line", "p-mark")] == [2, 4]


def test_lone_intervals_are_whiskers_and_neighboring_ones_a_band():
    y, known = (1.0, 1.0, 1.0, 1.0), (0.5, NAN, 0.5, 0.5)
    figure = lines(series=(Series("a", (1.0, 2.0, 3.0, 4.0), y, known, tuple(end + 1 for end in known)),))
    assert (len(of_class(figure, "p-whisker")), len(of_class(figure, "p-band"))) == (1, 1)


def starts(figure, kind):
    return [
        tuple(map(float, re.match(r"M(\S+) (-?[\d.]+)", each.get("d")).groups()))
        for each in of_class(figure, kind)
    ]


def test_equal_factors_are_equal_steps_on_logarithmic_axes():
    series = (Series("a", (1.0, 10.0, 100.0), (0.02, 0.2, 2.0)),)
    points = starts(lines(series=series, log_x=True, log_y=True), "p-mark")[:3]
    steps = np.diff(points, axis=0)
    np.testing.assert_allclose(steps[0], steps[1], atol=0.11)
    assert steps[0][0] > 0 > steps[0][1]


def test_ends_below_zero_reach_the_edge_of_a_logarithmic_axis():
    series = (Series("a", (1.0, 2.0), (0.1, 0.2), (-0.5, 0.05), (0.3, 0.4)),)
    assert lines(series=series, log_y=True).y_ticks[0] == 0.05
    assert "[-0.5, 0.3]" in titles(lines(series=series, log_y=True))[0]


def test_series_differ_by_color_dash_and_marker():
    figure = EXAMPLES["eight long names"]
    shapes = {re.sub(r"^M\S+ -?[\d.]+(?=m)", "", each.get("d")) for each in of_class(figure, "p-mark")}
    assert len(shapes) == len(set(COLORS)) == len(set(DASHES)) == 8


def test_a_method_looks_the_same_in_every_figure_whoever_is_beside_it():
    def looks(*names):
        figure = lines(series=tuple(Series(name, (1.0, 2.0), (0.1, 0.2)) for name in names))
        drawn = [each.get("class").split()[-1] for each in of_class(figure, "p-series")]
        assert drawn == [f"p-{look}" for look in figure.looks]
        return dict(zip(names, figure.looks, strict=True))

    noise, sweep = looks("hgb", "uniform", "distance", "reliability", "attention"), looks("uniform", "attention")
    assert all(noise[name] == look for name, look in sweep.items())
    corrected = looks("hgb+prior-correction", "attention+prior-correction")
    assert list(corrected.values()) == [noise["hgb"], noise["attention"]]
    both = looks("attention+prior-correction", "attention", *"abcdef")
    assert sorted(both.values()) == list(range(8))


def test_the_legend_lies_below_all_data():
    figure = EXAMPLES["eight long names"]
    legend = [y for element, _, y, _ in placed(parsed(figure)) if element.get("transform")]
    assert len(legend) == 8
    assert min(legend) > max(y for _, y in starts(figure, "p-mark")[:16]) + 20


@pytest.mark.parametrize("from_zero", [False, True])
def test_bars_are_as_long_as_their_values_lie_above_the_base(from_zero):
    figure = bars(from_zero=from_zero)
    lengths = [float(each.get("width")) for each in of_class(figure, "p-bar")]
    values = np.array([value for value in figure.values if not math.isnan(value)]) - figure.base
    np.testing.assert_allclose(lengths / values, lengths[0] / values[0], rtol=0.01)
    assert min(lengths) > 10
    assert figure.notes == (() if from_zero else (f"Bars start at {figure.ticks[0]:g}, not at 0.",))
    assert (figure.base == 0) == from_zero


def test_bars_on_both_sides_start_at_zero():
    figure = EXAMPLES["bars on both sides"]
    boxes = [(float(each.get("x")), float(each.get("width"))) for each in of_class(figure, "p-bar")]
    assert figure.base == 0
    assert boxes[0][0] + boxes[0][1] == pytest.approx(boxes[1][0], abs=0.11)


def test_bars_below_zero_have_a_length_too():
    figure = Bars("Loss", "loss", ("a", "b"), (-0.5, -0.4), None, None)
    assert figure.ticks[-1] == figure.base
    assert -0.4 < figure.base <= 0
    assert all(float(each.get("width")) > 10 for each in of_class(figure, "p-bar"))


def test_published_values_lie_where_their_bars_would_end():
    figure = bars(values=(0.9512, 0.941, 0.97, 0.9648))
    marks = [place[0] for place in starts(figure, "p-published")][:2]
    ends = [float(each.get("x")) + float(each.get("width")) for each in of_class(figure, "p-bar")]
    assert marks == pytest.approx([ends[1], ends[2]], abs=0.2)


def test_long_names_are_written_out():
    texts = {each.text for each in parsed(EXAMPLES["twelve bars"]).iter("text")}
    assert set(LONG) <= texts


@pytest.mark.parametrize(("classes", "numbered"), [(12, True), (13, False)])
def test_cells_hold_numbers_up_to_twelve_classes(classes, numbered):
    figure = matrix(classes)
    texts = [each.text for each in of_class(figure, "p-small")]
    counts = [str(count) for row in figure.counts for count in row]
    assert texts == (counts if numbered else [])
    assert len(titles(figure)) == sum(numbered or count != "0" for count in counts)


def test_cells_are_shaded_by_the_share_of_their_row():
    shades = [float(each.get("fill-opacity")) for each in of_class(matrix(5), "p-cell")]
    shares = [matrix(5).share(truth, answer) for truth in range(5) for answer in range(5)]
    assert np.argsort(shades).tolist() == np.argsort(shares).tolist()


numbers = st.floats(-1e9, 1e9).map(lambda value: 0.0 if abs(value) < 1e-9 else value)


@given(numbers, numbers, st.integers(4, 9), st.booleans())
def test_ticks_are_round_equally_spaced_and_cover_the_values(a, b, most, whole):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, most, whole)
    slack = 1e-8 * (found[-1] - found[0])
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= most
    steps = np.diff(found)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-5)
    assert f"{steps[0]:.4e}".split("e")[0].rstrip("0.") in {"1", "2", "2.5", "5"}
    assert not whole or all(tick == int(tick) for tick in found)


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.integers(4, 9))
def test_logarithmic_ticks_are_round_and_cover_the_values(a, b, most):
    found = log_ticks(min(a, b), max(a, b), most)
    assert found[0] <= min(a, b) <= max(a, b) <= found[-1]
    assert 2 <= len(found) <= most
    assert all(second > first for first, second in pairwise(found))
    assert {f"{tick:.6e}".split("e")[0].rstrip("0.") for tick in found} <= {"1", "2", "3", "5"}


@given(numbers, numbers)
def test_ticks_are_told_apart(a, b):
    found = ticks(min(a, b), max(a, b))
    if found[1] - found[0] > 1e-8 * max(map(abs, found)):
        assert len({tick_text(tick) for tick in found}) == len(found)


@given(rows=st.integers(1, 500), share=st.floats(0, 1))
def test_intervals_of_bins_are_wilsons(rows, share):
    right = round(share * rows)
    labels = np.array([0] * right + [1] * (rows - right))
    figure = Reliability.of(reliability_curve(np.tile([0.75, 0.25], (rows, 1)), labels, 2), "r")
    wanted = stats.binomtest(right, rows).proportion_ci(0.95, method="wilson")
    assert figure.interval(1) == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert figure.interval(0) is None


REFUSED = {
    "no points": (lambda: Series("a", (), ()), "'a' is empty"),
    "no series": (lambda: lines(series=()), "1 to 8 series, got 0"),
    "nine series": (lambda: lines(series=(Series("a", (1.0,), (1.0,)),) * 9), "got 9"),
    "two lengths": (lambda: Series("a", (1.0, 2.0), (1.0,)), "'x': 2, 'y': 1"),
    "infinity": (lambda: Series("a", (1.0,), (INF,)), "y must be finite.*inf"),
    "no place": (lambda: Series("a", (NAN,), (1.0,)), "x must be finite"),
    "one end": (lambda: Series("a", (1.0,), (1.0,), low=(0.5,)), "both low and high"),
    "ends crossed": (lambda: Series("a", (1.0,), (1.0,), (2.0,), (1.0,)), "2.0 and 1.0"),
    "zero on a logarithm": (
        lambda: lines(series=(Series("a", (0.0,), (1.0,)),), log_x=True),
        "x must be positive",
    ),
    "names missing": (lambda: bars(names=("a",)), "1 names for 4 values"),
    "no bars": (lambda: bars(names=(), values=(), low=(), high=(), published=()), "is empty"),
    "published without end": (lambda: bars(published=(None, INF, None, None)), "published must be finite"),
    "share above one": (lambda: Reliability("r", (0.5,), (1.5,), (3,), (0.0, 1.0)), "accuracy must lie between"),
    "edges missing": (lambda: Reliability("r", (0.5,), (0.5,), (3,), (0.0,)), "2 rising edges"),
    "edges falling": (lambda: Reliability("r", (0.5,), (0.5,), (3,), (1.0, 0.0)), "rising edges"),
    "negative rows": (lambda: Reliability("r", (0.5,), (0.5,), (-3,), (0.0, 1.0)), "not be negative"),
    "not square": (lambda: Matrix("m", ("a", "b"), ((1, 2), (3,))), "2 names"),
    "negative count": (lambda: Matrix("m", ("a",), ((-1,),)), "from 0 up"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_figure_that_cannot_be_drawn_is_refused(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml"), (".pdf", b"%PDF-")],
    ids=["png", "svg", "pdf"],
)
def test_the_suffix_decides_what_is_written(tmp_path, suffix, magic):
    path = tmp_path / f"figure{suffix}"
    write_figure(lines(), path)
    assert path.read_bytes().startswith(magic)


ODD = ("lines with logarithms", "one point", "no value", "one value", "bars on both sides", "bars not run",
       "reliability of few rows", "reliability of none", "matrix of forty", "matrix of one")  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_figures_become_files_too(name, tmp_path):
    write_figure(EXAMPLES[name], tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    # matplotlib draws letters as outlines, and says in a comment what they spell.
    assert f"<!-- {EXAMPLES[name].title} -->" in text
    assert ElementTree.fromstring(text).tag.endswith("svg")


CHANGED = {
    "lines": (lines(), lines(series=lines().series[:1])),
    "bars": (bars(), replace(bars(), values=(0.95, 0.9377, NAN, 0.9648))),
    "published": (bars(), replace(bars(), published=None)),
    "reliability": (reliability(), replace(reliability(), low=None, high=None)),
    "matrix": (matrix(), replace(matrix(), counts=((1, 2, 3),) * 3)),
}


@pytest.mark.parametrize(("figure", "other"), CHANGED.values(), ids=CHANGED.keys())
def test_files_are_the_same_just_when_the_figures_are(figure, other, tmp_path):
    for name, each in {"one": figure, "again": figure, "other": other}.items():
        write_figure(each, tmp_path / f"{name}.png")
    one, again, changed = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "again", "other"))
    assert one == again != changed


def test_dollars_in_names_are_not_read_as_mathematics(tmp_path):
    write_figure(bars(title=r"$\nothing$", names=("$a", "$b$", "c", r"$\frac$"), note=r"$\x$"), tmp_path / "f.png")
    write_figure(lines(title="$$", series=(Series(r"$\x$", (1.0,), (1.0,)),), note="$_$"), tmp_path / "f.png")
    write_figure(Matrix("m", (r"$\x$",), ((1,),)), tmp_path / "f.png")


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"\.png, \.svg, \.pdf, got 'figure\.jpg'"):
        write_figure(lines(), tmp_path / "figure.jpg")


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'attnknn[plots]'")):
        write_figure(lines(), tmp_path / "figure.png")


def test_matplotlib_waits_until_a_file_is_written_and_keeps_its_settings(tmp_path):
    code = f"""
import sys
from pathlib import Path
from attnknn.study import figures, rendered, svg
assert not [name for name in sys.modules if name.startswith("matplotlib")]
import matplotlib
before = matplotlib.rcParams.copy()
lines = figures.Lines("t", "x", "y", (figures.Series("a", (1.0, 2.0), (1.0, 2.0)),), log_x=True)
rendered.write_figure(lines, Path({str(tmp_path / "figure.png")!r}))
assert "matplotlib.pyplot" not in sys.modules
assert before == matplotlib.rcParams.copy()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_a_bar_tells_four_decimals_unless_they_would_all_be_zeros():
    shown = bars(values=(0.000167, -0.0251, 3e-6, NAN))
    assert [shown.label(at) for at in range(4)] == ["0.0002", "-0.0251", "3e-06", "not run"]
