"""The demo from end to end, and its pictures."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from attnknn.data import png
from attnknn.metrics import reliability_curve
from attnknn.study.draw import digit, reliability_diagram

VOID = {"meta", "img", "rect", "line", "br", "link"}


class Balanced(HTMLParser):
    """Fails on tags that do not close, and collects those seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_picture_reads_back_as_it_was_drawn():
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(pixels)))), pixels)


def test_a_picture_escapes_its_words():
    assert "<script>" not in digit(np.zeros(64), '"><script>', 8)


def test_a_diagram_has_one_bar_for_each_bin_in_use():
    chances = np.array([[0.95, 0.05], [0.9, 0.1], [0.55, 0.45]])
    drawn = reliability_diagram(reliability_curve(chances, [0, 0, 1], 10), "a <b>")
    assert drawn.count('class="accuracy"') == 3
    assert "a &lt;b&gt;" in drawn
    parser = Balanced()
    parser.feed(drawn)
    assert parser.open == []


@pytest.mark.slow
def test_the_demo_compares_explains_edits_and_needs_nothing_else(attnknn, tmp_path):
    out = tmp_path / "demo.html"
    found = attnknn.json("demo", "--out", out, "--seed", 1)
    assert set(found["methods"]) == {"uniform", "distance", "softmax", "reliability", "scikit-learn"}
    for method in found["methods"].values():
        assert method["metrics"]["accuracy"]["value"] > 0.9
    assert {gap["metric"] for gap in found["differences"]} == {"accuracy", "Brier"}
    assert found["abstention"]["answered"] <= found["abstention"]["rows"]
    answers = found["edit"]["answers"]
    assert answers["relabelled"] != answers["before"]
    text = out.read_text(encoding="utf-8")
    written = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"//|<script|<link|@import|url\(", written)
    for title in (
        "Results",
        "Do the probabilities hold?",
        "A right answer",
        "A wrong answer",
        "Saying nothing",
        "Editing",
    ):
        assert title in text
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    images = [attributes for tag, attributes in parser.seen if tag == "img"]
    assert len(images) > 20
    assert all(each["src"].startswith("data:image/png;base64,") and each["alt"] for each in images)
    assert sum(tag == "svg" and attributes.get("role") == "img" for tag, attributes in parser.seen) == 2
