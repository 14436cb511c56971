"""The code in the README and the docs runs as it stands."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "docs/tutorial.md", "docs/how-to.md"]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_of_a_page_runs_in_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(page)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number + 1}", "exec"), names)
    assert blocks
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", [*PAGES, "docs/reference.md", "docs/explanation.md", "CONTRIBUTING.md"])
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


def test_the_speeds_in_the_readme_are_those_of_the_recorded_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme

    text = (ROOT / "README.md").read_text()
    results = json.loads((ROOT / "results/synthetic/bench.json").read_text())
    assert readme.section(results) in text
    assert readme.updated(text, results) == text
