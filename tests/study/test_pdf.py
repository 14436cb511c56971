"""The PDF of a report: every sentence, number and figure of the page, and nothing is cut off or covered."""

from __future__ import annotations

import json
import re
import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnknn.errors import MissingExtra
from attnknn.study import engine
from attnknn.study.answers import sentences_of
from attnknn.study.cells import Cells
from attnknn.study.figures import Bars
from attnknn.study.paper import BOLD, MONO, SIZE, TEXT, Letters, Paper, wrapped
from attnknn.study.pdf import sheets_of, write_pdf
from attnknn.study.plots import plots_of
from attnknn.study.published import claims, published
from attnknn.study.tables import METRICS, in_words
from attnknn.study.verdicts import short

pytest.importorskip("matplotlib", reason="needs attnknn[plots]")
LEADS = ("distance+raw",)


@pytest.fixture(scope="module")
def ran(recipe, task, tmp_path_factory):
    """A report of a study and its figures."""
    out = tmp_path_factory.mktemp("study") / "run"
    asked = {"methods": ["sklearn-knn", "distance+raw"], "seeds": [0, 1], "device": "cpu", "commit": "c$d$"}
    report = json.loads(json.dumps(engine.run_study(recipe, task, out=out, **asked).report))
    return report, plots_of(report, Cells.open(out, recipe), LEADS)


@pytest.fixture(scope="module")
def long(ran):
    """The same with many methods of long names, all metrics, and all that may be said beside them."""
    report, _ = ran
    names = [
        f"attention+tta+k-ensemble+prior-correction@symmetric-bank-{at}" if at % 3 else f"m{at}"
        for at in range(40)
    ]
    found = {name: {"mean": 0.5, "low": -0.1234, "high": 0.9, "values": []} for name in METRICS}
    found |= {"nll": {"mean": 123.4567, "low": None, "high": None, "values": []}}
    times = {"search": 0.25, "weighing": 0.125}
    built = {"build_s": 1.25, "ms_per_query": {how: {"median": 0.5} for how in ("single", "batch")}}
    told = {
        **report,
        "config": {**report["config"], "data": "iris"},
        "methods": dict.fromkeys([*names, "uniform"], found),
        "retention": {name: {"mean": 0.9, "low": 0.8, "high": 1.0, "values": [0.9, 0.9]} for name in names},
        "verdicts": [f"no difference found between {name} and another in NLL: because" for name in names],
        "settings": {"stages": [{"overhead": "adds 0.1 ms", "stages": [{"batch": 1000, "ms_per_query": times}]}]},
        "places": {
            "hnsw-9x9-cpu": {"not_run": "took longer " * 30},
            "flat-8x8-cpu": {**built, "recall": 0.75, "bytes": {"host": 2**25, "gpu": 0}},
        },
        "not_run": {"lightgbm-0": "no\nwheel " + 300 * "x"},
    }
    figures = {
        f"bars-{count}": Bars(f"{count} bars", "accuracy", tuple(names[:count]), (0.5,) * count, None, None)
        for count in (2, 13, 40)
    }
    return told, figures


def texts(sheet):
    from matplotlib.text import Text

    return [each for each in sheet.findobj(Text) if each.get_visible() and each.get_text().strip()]


def squeezed(words):
    return re.sub(r"\s", "", words)


def said(sheets):
    """All words without the spaces, where lines may have been broken, and without what stands at the feet."""
    return squeezed("".join(each.get_text() for sheet in sheets for each in texts(sheet)[2:]))


@pytest.mark.parametrize("which", ["ran", "long"])
def test_every_sentence_number_and_title_is_there(which, request):
    report, figures = request.getfixturevalue(which)
    words = said(sheets_of(report, figures, LEADS))
    assert all(squeezed(sentence) in words for sentence in sentences_of(report, LEADS))
    assert all(squeezed(claim.claim) in words for claim in claims().values())
    for kind in ("methods", "uncalibrated"):
        for metrics in report[kind].values():
            assert f"floor{short(metrics['ece_floor']['mean'])}" in words
            for name in (METRICS.keys() & metrics.keys()) - {"ece_floor"}:
                for text in in_words(metrics[name], name):
                    assert text.replace(" ", "") in words
    assert all(squeezed(figure.title) in words for figure in figures.values())
    assert squeezed(report["command"]) in words
    assert squeezed(json.dumps(report["environments"][0]["environment"])) in words


def test_every_cell_stands_once_beside_its_row_and_below_its_head():
    paper = Paper("foot")
    rows = [[f"row-{row}", *(f"{row}.{column}" for column in range(25))] for row in range(70)]
    paper.table("Title", ["name", *(f"head-{column}" for column in range(25))], rows)
    found = {}
    for at, sheet in enumerate(paper.sheets):
        heads = {each.get_text(): each.get_position() for each in texts(sheet)}
        for each in texts(sheet):
            if match := re.fullmatch(r"(\d+)\.(\d+)", each.get_text()):
                beside = [name for name in texts(sheet) if name.get_text() == f"row-{match[1]}"]
                assert each.get_position()[1] in [name.get_position()[1] for name in beside]
                found.setdefault(each.get_text(), []).append(at)
                assert each.get_position()[0] == heads[f"head-{match[2]}"][0]
    assert set(found) == {cell for row in rows for cell in row[1:]}
    assert all(len(sheets) == 1 for sheets in found.values())
    assert len(paper.sheets) > 3


@pytest.mark.parametrize("before", range(44, 49))
def test_a_name_never_ends_a_sheet(before):
    paper = Paper("foot")
    for _ in range(before):
        paper.words("a line")
    paper.words("its name", BOLD, follows=40.0)
    paper.words("what it names")
    ends = [[each.get_text() for each in texts(sheet)] for sheet in paper.sheets]
    assert any("its name" in words and "what it names" in words for words in ends)


def test_a_column_of_words_gets_more_room_than_long_names():
    paper, words = Paper("foot"), " ".join(["word"] * 60)
    paper.table("Title", ["name", "number", "where"], [["a long name, " * 9, "0.5", words]], words=2)
    (sheet,) = paper.sheets
    lines = [each.get_text() for each in texts(sheet)]
    assert sum("word" in line for line in lines) < sum("name" in line for line in lines[1:]) * 2 < 20


def test_searches_stages_and_published_numbers_have_tables(long):
    report, _ = long
    lines = {each.get_text() for sheet in sheets_of(report, {}, LEADS) for each in texts(sheet)}
    assert {"batches of 1,000", "0.2500", "0.1250", "flat-8x8-cpu", "1.25", "0.750"} <= lines
    assert {f"{each.value:.4g}" for each in published("main", "iris")} <= lines


def test_verdicts_come_first_and_what_was_not_run_last(long):
    report, figures = long
    words = said(sheets_of(report, figures, LEADS))
    heads = ("main:iris", "Verdicts", "Thefourclaims", "Numbers", "Timeofeachstage", "Searches", "2bars", "40bars")
    last = (
        "Beforecalibration",
        "Whatothersreported",
        "Whatwasnotrun",
        "notrun:lightgbm-0:nowheelxxx",
        "Howitwasmade",
    )
    places = [words.index(each) for each in (*heads, *last)]
    assert places == sorted(places)


@pytest.mark.parametrize("which", ["ran", "long"])
def test_nothing_is_cut_off_and_no_words_cover_others(which, request):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    report, figures = request.getfixturevalue(which)
    for sheet in sheets_of(report, figures, LEADS):
        canvas = FigureCanvasAgg(sheet)
        canvas.draw()
        boxes = [(each.get_text(), each.get_window_extent(canvas.get_renderer())) for each in texts(sheet)]
        for words, box in boxes:
            assert 0 <= box.x0 < box.x1 <= sheet.bbox.x1, words
            assert 0 <= box.y0 < box.y1 <= sheet.bbox.y1, words
        if not sheet.axes:
            for (one, box), (two, other) in combinations(boxes, 2):
                apart = box.x1 <= other.x0 or other.x1 <= box.x0 or box.y1 <= other.y0 or other.y1 <= box.y0
                assert apart, (one, two)


def test_a_file_is_of_A4_and_always_the_same(ran, tmp_path):
    report, figures = ran
    for name in ("one", "again"):
        write_pdf(sheets_of(report, figures, LEADS), "a title", tmp_path / f"{name}.pdf")
    one, again = ((tmp_path / f"{name}.pdf").read_bytes() for name in ("one", "again"))
    assert one == again
    assert one.startswith(b"%PDF-")
    assert one.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type /Page\b", one)) == len(sheets_of(report, figures, LEADS))
    boxes = re.findall(rb"/MediaBox \[ ?0 0 (\S+) (\S+) ?\]", one)
    assert {tuple(round(float(side) / 72, 6) for side in box) for box in boxes} == {SIZE}
    assert b"CreationDate" not in one


def test_a_report_of_one_seed_without_methods_has_sheets_too(ran):
    report, _ = ran
    bare = {**report, "methods": {}, "uncalibrated": {}, "verdicts": [], "environments": []}
    words = said(sheets_of(bare, {}, ()))
    assert "Numbers" not in words
    assert "Thefourclaims" in words


def test_without_matplotlib_the_message_says_what_to_install(ran, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=re.escape("pip install 'attnknn[plots]'")):
        write_pdf(sheets_of(*ran, LEADS), "a title", tmp_path / "report.pdf")
    assert not list(tmp_path.iterdir())


def width(line, letters):
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return TextPath((0, 0), line, prop=FontProperties(**letters.look)).get_extents().width


@given(
    st.text(st.sampled_from("abcWi.+@ -_/"), max_size=120),
    st.floats(40, 300),
    st.sampled_from([TEXT, BOLD, MONO, Letters(20)]),
)
def test_lines_fit_and_lose_no_letter(words, wide, letters):
    lines = wrapped(words, wide, letters)
    assert squeezed("".join(lines)) == squeezed(words)
    # letters that are neighbors may lie a little closer than each of them is wide, never further apart
    assert all(width(line, letters) <= wide + 0.5 for line in lines if line)


def test_words_break_at_spaces_and_names_behind_their_signs():
    assert wrapped("one two", 1000, TEXT) == ["one two"]
    assert wrapped("attention+ensemble", width("attention+ens", TEXT), TEXT) == ["attention+", "ensemble"]
    assert wrapped("found: -.0711", width("found: -.0", TEXT), TEXT) == ["found:", "-.0711"]
    assert wrapped(" ", 10, TEXT) == [""]
