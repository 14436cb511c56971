"""Displays hold the numbers of the metrics, draw just those, and say what they cannot draw."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from attnknn import AttnKNNClassifier, ImageOptions
from attnknn.bank import MemoryBank
from attnknn.errors import InvalidInput, MissingExtra
from attnknn.metrics import accuracy, ece, nll, reliability_curve
from attnknn.study.displays import KS, KSweepDisplay, NeighborsDisplay, ReliabilityDisplay

matplotlib = pytest.importorskip("matplotlib", reason="needs attnknn[plots]")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

pytestmark = pytest.mark.usefixtures("one_thread", "closed")
NAMES = np.array(["no", "yes"])


@pytest.fixture
def closed():
    yield
    plt.close("all")


def rows(count=240, seed=0):
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    return draw.normal(labels[:, None], 0.9, (count, 4)), labels


@pytest.fixture(scope="module")
def linear():
    return LogisticRegression().fit(*rows())


@pytest.fixture(scope="module")
def ours():
    X, y = rows()
    names = np.array(["a", "b", "$c$"])[y]
    return AttnKNNClassifier(15, weights="softmax", embedder="standardize", random_state=0).fit(X, names)


@pytest.fixture(scope="module")
def seen(ours):
    X, y = rows(90, 1)
    return X, np.array(["a", "b", "$c$"])[y], np.searchsorted(ours.classes_, np.array(["a", "b", "$c$"])[y])


@pytest.fixture(scope="module")
def pictured():
    digits = load_digits()
    kept = np.flatnonzero(digits.target < 3)[:90]
    images = np.clip(digits.images[kept] * 16, 0, 255).astype(np.uint8)[..., None]
    options = ImageOptions(epochs=1, augmentation="digits", embed_dim=8, batch_size=16)
    model = AttnKNNClassifier(6, weights="uniform", calibration=None, training=options, random_state=0)
    return model.fit(images, digits.target[kept]), images


def test_a_diagram_of_any_classifier_shows_count_and_accuracy_of_each_bin(linear):
    X, y = rows(300, 2)
    display = ReliabilityDisplay.from_estimator(linear, X, y, bins=10)
    said = linear.predict_proba(X)
    sure, right = said.max(axis=1), said.argmax(axis=1) == y
    for at in range(10):
        here = (sure > display.edges[at]) & (sure <= display.edges[at + 1])
        assert display.count[at] == here.sum()
        if here.any():
            np.testing.assert_allclose(display.accuracy[at], right[here].mean())
            np.testing.assert_allclose(display.confidence[at], sure[here].mean())
            assert display.low[at] < display.accuracy[at] <= display.high[at] or right[here].mean() == 0
        else:
            assert np.isnan(display.accuracy[at])
    assert display.ece == pytest.approx(ece(said, y, bins=10))
    full = display.count > 0
    drawn = [bar for bar in display.ax_.patches if bar.get_width() == pytest.approx(0.1)]
    tops = np.array([bar.get_y() + bar.get_height() for bar in drawn]).reshape(-1, 2)[:, 1]
    np.testing.assert_allclose(tops, np.maximum(display.confidence, display.accuracy)[full])
    np.testing.assert_array_equal([bar.get_height() for bar in display.counts_ax_.patches], display.count[full])
    assert display.ax_.get_title() == f"LogisticRegression: ECE {display.ece:.4f}"
    assert display.figure_ is display.ax_.figure is display.counts_ax_.figure


def test_one_column_is_the_probability_of_the_second_class():
    draw = np.random.default_rng(3)
    sure = draw.random(200)
    truth = NAMES[(draw.random(200) < sure).astype(int)]
    one = ReliabilityDisplay.from_predictions(truth, sure)
    two = ReliabilityDisplay.from_predictions(truth, np.column_stack([1 - sure, sure]), classes=["no", "yes"])
    turned = ReliabilityDisplay.from_predictions(truth, np.column_stack([sure, 1 - sure]), classes=["yes", "no"])
    for other in (two, turned):
        np.testing.assert_array_equal(one.count, other.count)
        np.testing.assert_allclose(one.accuracy, other.accuracy)
    assert one.ax_.get_title() == f"ECE {one.ece:.4f}"


def test_a_class_without_rows_and_a_label_without_column_are_understood():
    said = np.tile([0.5, 0.25, 0.25], (4, 1))
    assert ReliabilityDisplay.from_predictions([0, 0, 2, 2], said, bins=2).accuracy[0] == 0.5
    known = ReliabilityDisplay.from_predictions(["x", "x", "z", "new"], said, classes=["x", "y", "z"], bins=2)
    assert known.accuracy[0] == 0.5


def test_a_diagram_takes_the_place_of_the_subplot_that_it_is_given(linear):
    figure, (first, second) = plt.subplots(1, 2)
    place = second.get_position()
    display = ReliabilityDisplay.from_estimator(linear, *rows(60, 4), ax=second, name="$mine$")
    assert display.ax_ is second
    assert len(figure.axes) == 3
    for axes in (display.ax_, display.counts_ax_):
        box = axes.get_position()
        assert (box.x0, box.x1) == pytest.approx((place.x0, place.x1))
        assert place.y0 - 1e-9 <= box.y0 < box.y1 <= place.y1 + 1e-9
    assert display.counts_ax_.get_position().y1 < display.ax_.get_position().y0
    assert display.ax_.get_title().startswith(r"\$mine\$: ECE")
    assert not first.patches


def test_drawing_again_makes_another_figure_of_the_same_numbers(linear):
    display = ReliabilityDisplay(reliability_curve(linear.predict_proba(rows()[0]), rows()[1]), name="one")
    first = display.plot().figure_
    assert display.plot(name="two").figure_ is not first
    assert display.ax_.get_title().startswith("two")


def test_a_sweep_has_the_metrics_of_the_classifier_with_each_k(ours, seen):
    X, y, codes = seen
    display = KSweepDisplay.from_estimator(ours, X, y, ks=(1, 4, 30))
    assert list(display.values) == ["accuracy", "nll", "ece"]
    for at, k in enumerate(display.ks):
        said = ours.with_weights("softmax", n_neighbors=k).predict_proba(X)
        for metric, score in (("accuracy", accuracy), ("nll", nll), ("ece", ece)):
            assert display.values[metric][at] == pytest.approx(score(said, codes), abs=1e-12)
    for axes, values in zip(display.ax_, display.values.values(), strict=True):
        (line,) = axes.lines
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([(1, 4, 30), values]))
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "4", "30"]
    assert display.ax_[-1].get_legend().get_texts()[0].get_text() == "softmax"


def test_a_sweep_searches_the_rows_once(ours, seen, monkeypatch):
    asked, search = [], MemoryBank.search

    def counted(bank, queries, k, *more, **named):
        asked.append((len(queries), k))
        return search(bank, queries, k, *more, **named)

    monkeypatch.setattr(MemoryBank, "search", counted)
    KSweepDisplay.from_estimator(ours, seen[0], seen[1])
    assert [k for count, k in asked if count == len(seen[0])] == [KS[-1]]


def test_a_sweep_knows_of_rows_that_were_removed(seen):
    X, y = rows()
    model = AttnKNNClassifier(5, weights="distance", embedder="standardize", random_state=0).fit(X, y)
    model.remove(model.bank_.ids[:60])
    display = KSweepDisplay.from_estimator(model, seen[0], seen[2], ks=(2, 9))
    wanted = [nll(model.with_weights("distance", None, None, k).predict_proba(seen[0]), seen[2]) for k in (2, 9)]
    assert display.values["nll"] == pytest.approx(wanted)


def test_sweeps_share_axes_or_the_place_of_a_subplot():
    one = KSweepDisplay((1, 5, 20), {"accuracy": [0.9, 0.8, 0.7], "nll": [np.inf, 0.5, 0.6]}, name="one").plot()
    KSweepDisplay((1, 5, 20), {"accuracy": [0.7, 0.8, 0.9], "nll": [0.3, 0.4, 0.5]}).plot(one.ax_, name="two")
    assert [len(axes.lines) for axes in one.ax_] == [2, 2]
    assert len({line.get_color() for line in one.ax_[0].lines}) == 2
    assert np.isnan(one.ax_[1].lines[0].get_ydata()[0])
    assert [axes.get_title() for axes in one.ax_] == ["accuracy", "NLL"]
    figure, ax = plt.subplots()
    one.plot(ax)
    assert list(one.ax_) == figure.axes
    assert len(figure.axes) == 2


def test_bars_are_the_weights_of_an_explanation_and_colors_its_classes(ours, seen):
    display = NeighborsDisplay.from_estimator(ours, seen[0][0], most=5, name="row 0")
    told = ours.explain(seen[0][:1])[0]
    assert display.ids == [reason.id for reason in told.neighbors]
    np.testing.assert_array_equal(display.weights, [reason.weight for reason in told.neighbors])
    bars = display.ax_.patches
    assert (
        [bar.get_width() for bar in bars] == list(display.weights[:5]) == sorted(display.weights, reverse=True)[:5]
    )
    assert display.probabilities == pytest.approx(
        dict(zip(ours.classes_, ours.predict_proba(seen[0][:1])[0], strict=True))
    )
    assert list(display.probabilities.values()) == sorted(display.probabilities.values(), reverse=True)
    colors = {label: bar.get_facecolor() for label, bar in zip(display.labels, bars, strict=False)}
    assert all(bar.get_facecolor() == colors[label] for label, bar in zip(display.labels, bars, strict=False))
    assert len(set(colors.values())) == len(colors)
    told_there = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    first, chance = next(iter(display.probabilities.items()))
    assert told_there[0] == f"{first}: probability {chance:.3f}".replace("$", r"\$")
    assert f"{len(display.weights) - 5} more weigh {display.weights[5:].sum():.3f}" in display.ax_.get_xlabel()
    assert display.ax_.get_title().startswith("row 0: ")


def test_images_are_shown_as_pictures(pictured):
    from matplotlib.offsetbox import AnnotationBbox

    model, images = pictured
    display = NeighborsDisplay.from_estimator(model, images[7], most=4)
    boxes = [each for each in display.ax_.artists if isinstance(each, AnnotationBbox)]
    shown = [np.asarray(box.offsetbox.get_data())[..., :1] for box in boxes]
    wanted = [images[7], *(reason.picture for reason in display.explanation.neighbors[:4])]
    np.testing.assert_array_equal(shown, wanted)
    assert [box.xy[1] for box in boxes] == [-1, 0, 1, 2, 3]
    again = NeighborsDisplay.from_estimator(model, images[7, ..., 0], most=4)
    np.testing.assert_array_equal(again.weights, display.weights)


def test_a_frame_of_one_row_has_neighbors_too():
    pandas = pytest.importorskip("pandas")
    X, y = rows(60)
    frame = pandas.DataFrame(X, columns=list("pqrs"))
    model = AttnKNNClassifier(3, weights="uniform", random_state=0).fit(frame, y)
    display = NeighborsDisplay.from_estimator(model, frame.iloc[[5]])
    assert len(display.weights) == 3
    with pytest.raises(InvalidInput, match="got 2 rows"):
        NeighborsDisplay.from_estimator(model, frame.iloc[:2])


def unplaced():
    return plt.figure().add_axes((0.1, 0.1, 0.8, 0.8))


REFUSED = {
    "no classifier": (lambda: ReliabilityDisplay.from_estimator("x", [[1.0]], [0]), "predict_proba.*'x'"),
    "another estimator": (
        lambda: KSweepDisplay.from_estimator(LogisticRegression(), [[1.0]], [0]),
        "fitted AttnKNN",
    ),
    "not fitted": (lambda: NeighborsDisplay.from_estimator(AttnKNNClassifier(), [1.0]), "fitted AttnKNN"),
    "too many labels": (
        lambda: ReliabilityDisplay.from_predictions([0, 1, 2], [0.5, 0.5, 0.5]),
        "2 columns.*0, 1, 2",
    ),
    "names missing": (lambda: ReliabilityDisplay.from_predictions(["b"], [[0.5, 0.5]]), "2 columns"),
    "labels in columns": (lambda: ReliabilityDisplay.from_predictions([[0], [1]], [0.5, 0.5]), r"\(2, 1\)"),
    "no probabilities": (lambda: ReliabilityDisplay.from_predictions([0, 1], [0.5, 1.5]), "negative"),
    "falling k": (lambda: KSweepDisplay((5, 1), {"nll": [1, 2]}), "ascending"),
    "values missing": (lambda: KSweepDisplay((1, 5), {"nll": [1.0]}), "2 numbers each.*'nll': 1"),
    "no values": (lambda: KSweepDisplay((1, 5), {}), "2 numbers each"),
    "axes missing": (
        lambda: KSweepDisplay((1, 5), dict.fromkeys("abc", (1, 2))).plot(plt.subplots(1, 2)[1]),
        "got 2",
    ),
    "no subplot": (lambda: ReliabilityDisplay.from_predictions([0, 1], [0.5, 0.5], ax=unplaced()), "a subplot"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_drawn_is_refused(make, words):
    with pytest.raises(InvalidInput, match=words):
        make()


class Unasked:
    classes_ = np.array([0, 1])

    def predict_proba(self, X):
        raise AssertionError("was asked though nothing can be drawn")


def test_without_matplotlib_nothing_is_computed_and_the_message_says_what_to_install(monkeypatch, ours):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for make in (
        lambda: ReliabilityDisplay.from_estimator(Unasked(), [[1.0]], [0]),
        lambda: KSweepDisplay.from_estimator(ours, None, None),
        lambda: NeighborsDisplay.from_estimator(ours, None),
        lambda: KSweepDisplay((1, 2), {"nll": (1, 2)}).plot(),
    ):
        with pytest.raises(MissingExtra, match=re.escape("pip install 'attnknn[plots]'")):
            make()
