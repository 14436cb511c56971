"""Explanations as HTML: pictures, bars and numbers of tables and of images, and nothing from elsewhere."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from attnknn.predict import Explanation, Explanations, Reason
from attnknn.predict.page import page

VOID = {"img", "meta", "br", "hr"}


class Checked(HTMLParser):
    """Every tag that opens closes again."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def reason(name, label, weight, picture=None, row=None):
    return Reason(id=name, label=label, distance=0.25, weight=weight, row=row, picture=picture)


def explanation(neighbors, evidence, mass=0.25, picture=None):
    prior = {"cat": 0.6, "<i>dog": 0.4}
    votes = {label: (evidence[label] + mass * prior[label]) / (1 + mass) for label in prior}
    return Explanation(
        prediction="cat",
        probabilities=votes if sum(evidence.values()) else prior,
        evidence=evidence,
        prior=prior,
        prior_mass=mass,
        temperature=1.0,
        neighbors=neighbors,
        picture=picture,
    )


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (3, 10, 8, 3), dtype=np.uint8)


def shown(html):
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in found]


def test_a_page_shows_the_picture_and_its_neighbors(pictures):
    said = explanation(
        [reason("a/<b>1.png", "cat", 0.75, pictures[1]), reason(7, "<i>dog", 0.25, pictures[2])],
        {"cat": 0.75, "<i>dog": 0.25},
        picture=pictures[0],
    )
    html = page(said, "Why: <u>x</u>", name="<s>file.png")
    checked = Checked(html)
    np.testing.assert_array_equal(np.stack(shown(html)), pictures)
    images = [given for tag, given in checked.tags if tag == "img"]
    assert [given["width"] for given in images] == ["141", "77", "77"]
    assert all(given["class"] == "attnknn-small" for given in images)
    for wrong in ("<u>", "<b>1", "<i>dog", "<s>", "http", "<script", "<link"):
        assert wrong not in html
    for right in (
        "&lt;u&gt;x",
        "&lt;b&gt;1.png",
        "&lt;i&gt;dog",
        "&lt;s&gt;file.png",
        "weight 0.750",
        "distance 0.25",
    ):
        assert right in html


def test_bars_are_as_long_as_what_they_stand_for(pictures):
    said = explanation([reason(1, "cat", 1.0, pictures[0])], {"cat": 1.0, "<i>dog": 0.0}, mass=0.25)
    widths = [given["style"] for tag, given in Checked(page(said, "t")).tags if tag == "i"]
    assert widths == [f"width:{share:.2f}%" for share in (92, 80, 12, 8, 0, 8, 100)]
    assert "0.800 + 0.120" in page(said, "t")


def test_a_large_picture_is_scaled_smoothly():
    large = np.zeros((300, 200, 1), np.uint8)
    said = explanation([reason(1, "cat", 1.0, large)], {"cat": 1.0, "<i>dog": 0.0}, picture=large)
    assert "attnknn-small" not in page(said, "t").split("</head>")[1]


def test_a_table_has_the_same_page_without_pictures():
    rows = {"age": 31, "<b>job": None}
    said = explanation([reason(1, "cat", 1.0, row=rows)], {"cat": 1.0, "<i>dog": 0.0})
    html = said._repr_html_()
    tags = [tag for tag, _ in Checked(html).tags]
    assert ("img" in tags, "table" in tags) == (False, True)
    assert "&lt;b&gt;job" in html
    assert "<td>31</td><td></td>" in html


def test_without_neighbors_the_prior_speaks_alone():
    said = explanation([], {"cat": 0.0, "<i>dog": 0.0})
    assert "no neighbors" in said._repr_html_()
    assert said.from_prior == said.prior
    assert "0.000 + 0.600" in said._repr_html_()


def test_the_parts_of_the_vote_add_up():
    said = explanation([reason(1, "cat", 1.0)], {"cat": 1.0, "<i>dog": 0.0}, mass=0.5)
    total = {label: said.contributions[label] + said.from_prior[label] for label in said.prior}
    assert total == pytest.approx(dict(said.probabilities))


def test_several_share_one_style_and_more_neighbors_are_counted(pictures):
    said = explanation([reason(at, "cat", 0.04, pictures[0]) for at in range(25)], {"cat": 1.0, "<i>dog": 0.0})
    html = Explanations([said, said])._repr_html_()
    assert html.count("<style>") == 1
    assert html.count("and 5 more, together 0.200") == 2


def test_text_keeps_the_end_of_a_long_path_and_pictures_out():
    name = "a-very-long-folder-name/" * 3 + "picture.png"
    said = explanation([reason(name, "cat", 1.0, np.zeros((8, 8, 1), np.uint8))], {"cat": 1.0, "<i>dog": 0.0})
    line = said.text().splitlines()[-1]
    assert line.startswith("...")
    assert "picture.png  cat" in line
    assert said.to_dict()["neighbors"][0].keys() == {"id", "label", "distance", "weight", "row"}
    assert "array" not in repr(said)


def test_equal_reasons_are_equal_whatever_their_pictures(pictures):
    assert reason(1, "cat", 1.0, pictures[0]) == reason(1, "cat", 1.0, pictures[1].copy())


def test_each_row_may_have_a_prior_of_its_own():
    from sklearn.datasets import load_iris

    from attnknn import AttnKNNClassifier
    from attnknn.estimator.reasons import explained

    X, y = load_iris(return_X_y=True)
    model = AttnKNNClassifier(5, weights="softmax", embedder="identity", random_state=0).fit(X, y)
    voter, priors = model.voter_, np.eye(3)[[0, 1, 2]] * 0.4 + 0.2
    (poll,) = voter.polls(model.embedder_.transform(X[:3]))
    each = list(explained(poll, priors, voter, model.embedder_, model.classes_))
    for at, said in enumerate(each):
        alone = list(explained(poll, priors[at], voter, model.embedder_, model.classes_))[at]
        assert said == alone
        assert list(said.prior.values()) == priors[at].tolist()
