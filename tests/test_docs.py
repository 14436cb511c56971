"""The code in the README and the docs runs as it stands; its tables are those of the recorded runs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.S)


@pytest.fixture
def readme(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme

    return readme


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_every_python_block_of_a_page_runs_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(python_blocks(page)):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    assert capsys.readouterr().out


def test_the_pages_that_teach_have_code():
    for page in ("README.md", "docs/tutorial.md", "docs/how-to.md"):
        assert python_blocks(page), page


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*/*.md")), ids=lambda path: path.name)
def test_every_page_can_be_reached_from_the_one_above(page):
    index = page.parent.with_suffix(".md")
    above = index if index.exists() else ROOT / "README.md"
    assert page.name in above.read_text() or page.parent.name in above.read_text()


def test_the_tables_in_the_readme_are_those_of_the_recorded_runs(readme):
    text, results = (ROOT / "README.md").read_text(), ROOT / "results"
    assert readme.speed(json.loads((results / "synthetic/bench.json").read_text())) in text
    assert readme.accuracy(readme.recorded(results)) in text
    assert readme.updated(text, results) == text


def report(**methods):
    return {
        "command": "attnknn study main --data made-up --out runs",
        "config": {"data": "made-up", "train_rows": None, "test_share": 0.25, "drop_duplicates": True},
        "methods": methods,
    }


def estimate(mean, reach=None, seeds=3):
    ends = (None, None) if reach is None else (mean - reach, mean + reach)
    return {"mean": mean, "low": ends[0], "high": ends[1], "values": [mean] * seeds}


def test_the_generator_states_means_with_half_intervals_and_how_many_seeds(readme):
    scores = {"accuracy": estimate(0.5, 0.01), "nll": estimate(0.25, 0.5), "ece": estimate(0.125, 0.001)}
    table = readme.accuracy([report(ours={**scores, "ece_floor": estimate(0.0625)})])
    assert "| `ours` | .5000 ± .0100 | .2500 ± .5000 | .1250 ± .0010 (.0625) | 3 |" in table
    assert "made-up**, 25 % of the rows test, duplicates dropped" in table
    assert "AUC" not in table


def test_the_generator_writes_a_dash_for_what_is_not_there(readme):
    one = {"accuracy": estimate(0.5, seeds=1), "nll": {**estimate(0.5, seeds=1), "mean": None}}
    one["ece"] = estimate(0.5, seeds=1)
    table = readme.accuracy([report(a={**one, "auc": estimate(0.75, seeds=1)}, b=one)])
    assert "| `a` | .5000 | - | .5000 | .7500 | 1 |" in table
    assert "| `b` | .5000 | - | .5000 | - | 1 |" in table


def test_the_generator_skips_what_has_no_results(readme, tmp_path):
    (tmp_path / "letter").mkdir()
    (tmp_path / "letter/main.json").write_text(json.dumps({"study": "main"}))
    assert readme.recorded(tmp_path) == [{"study": "main"}]
    assert "No results are recorded yet" in readme.accuracy([])
