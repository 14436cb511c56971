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
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    return tables


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


@pytest.mark.parametrize("page", ["README.md", "docs/reference/results.md"])
def test_the_tables_of_a_page_are_those_of_the_recorded_runs(tables, page):
    assert page in tables.PAGES
    text = (ROOT / page).read_text()
    assert tables.updated(text, ROOT / "results") == text
    assert "| `attention` |" in text or "| adult |" in text


@pytest.mark.parametrize("data", ["cifar10", "adult"])
def test_the_readme_has_every_method_of_the_main_tables_with_intervals(data):
    text = (ROOT / "README.md").read_text()
    _, _, table = text.partition("<!-- in-full:")[2].partition(f"**{data}**")
    rows = re.findall(r"^\|.*\n(?:\|.*\n)*", table, flags=re.M)[0].splitlines()
    methods = json.loads((ROOT / "results" / data / "main.json").read_text())["methods"]
    assert [row.split("|")[1].strip(" `") for row in rows[2:]] == list(methods)
    assert all(title in rows[0] for title in ("accuracy", "NLL", "ECE (floor)"))
    for row, found in zip(rows[2:], methods.values(), strict=True):
        assert f"{found['accuracy']['mean']:.4f}".removeprefix("0") in row
        assert row.count("±") >= 3


def test_the_figures_of_the_readme_are_those_of_the_recorded_runs(tables):
    for name, content in tables.figures(ROOT / "results").items():
        assert (ROOT / "docs" / "figures" / name).read_text() == content
        assert f"docs/figures/{name}" in (ROOT / "README.md").read_text()


def report(**methods):
    return {
        "command": "attnknn study main --data made-up --out runs",
        "config": {"data": "made-up", "train_rows": None, "test_share": 0.25, "drop_duplicates": True},
        "methods": methods,
    }


def estimate(mean, reach=None, seeds=3):
    ends = (None, None) if reach is None else (mean - reach, mean + reach)
    return {"mean": mean, "low": ends[0], "high": ends[1], "values": [mean] * seeds}


def test_the_generator_states_means_with_half_intervals_and_how_many_seeds(tables):
    scores = {"accuracy": estimate(0.5, 0.01), "nll": estimate(0.25, 0.5), "ece": estimate(0.125, 0.001)}
    table = tables.details([report(ours={**scores, "ece_floor": estimate(0.0625)})])
    assert "| `ours` | .5000 ± .0100 | .2500 ± .5000 | .1250 ± .0010 (.0625) | 3 |" in table
    assert "made-up**, 25 % of the rows test, duplicates dropped" in table
    assert "AUC" not in table


def test_the_generator_writes_a_dash_for_what_is_not_there(tables):
    one = {"accuracy": estimate(0.5, seeds=1), "nll": {**estimate(0.5, seeds=1), "mean": None}}
    one["ece"] = estimate(0.5, seeds=1)
    table = tables.details([report(a={**one, "auc": estimate(0.75, seeds=1)}, b=one)])
    assert "| `a` | .5000 | - | .5000 | .7500 | 1 |" in table
    assert "| `b` | .5000 | - | .5000 | - | 1 |" in table


def test_the_time_on_a_cpu_is_that_of_the_slowest_seed(tables):
    made = report(attention={"accuracy": estimate(0.5, seeds=1)})
    made |= {"seconds": {"attention": {"fit": {"values": [12.2, 10.0]}}}}
    made |= {"environment": {"cores": 2, "processor": "made-up"}}
    assert "- made-up: 12 s on 2 cores (made-up), accuracy .5000; `attnknn" in tables.cpu([made])


def test_the_generator_skips_what_has_no_results(tables, tmp_path):
    (tmp_path / "letter").mkdir()
    (tmp_path / "letter/main.json").write_text(json.dumps({"study": "main"}))
    assert tables.recorded(tmp_path) == [{"study": "main"}]
    assert "No results are recorded yet" in tables.summary([])


def test_the_summary_has_a_row_for_each_data_set(tables):
    scores = {"accuracy": estimate(0.5, 0.01, seeds=2), "nll": estimate(0.25, 0.5)}
    made = {**report(hgb=scores, attention={**scores, "nll": {**scores["nll"], "mean": None}}), "seeds": [0, 1, 2]}
    expected = "| made-up | 3 | - | - | .5000 / .2500 (*n* = 2) | - | .5000 / - (*n* = 2) | - |"
    assert expected in tables.summary([made])


def test_the_tables_of_an_ablation_say_what_each_change_does(tables):
    def change(nll, accuracy):
        return {"nll": estimate(nll, 0.01), "accuracy": estimate(accuracy, 0.02)}

    parts = tables.ablation_tables.PARTS
    told = {"parts": {part: {"gradient": 0.5, "size": 0.25} for part in parts if part != "neighbor_dropout"}}
    scores = {"accuracy": estimate(0.75, 0.01), "nll": estimate(0.5, 0.02)}
    made = {
        "command": "attnknn study ablation --minutes 0",
        "seeds": [0, 1],
        "methods": dict.fromkeys(
            ("attention", "attention-all", "attention-all-heads-1", "attention-with-smoothing"), scores
        ),
        "not_run": {"attention-resnet50-0": "no time", "attention-resnet50-1": "no time"},
        "config": {
            "data": "made-up",
            "noise": {"rate": 0.3, "kind": "asymmetric"},
            "ours": {"n_neighbors": 32},
        },
        "settings": {"attention-all": [told, told]},
        "differences": {
            "attention-all": {"attention-none": change(-0.05, 0.03)},
            **{f"attention-all-{part}": {"attention-all": change(0.02, -0.01)} for part in (*parts, "heads-1")},
            "attention-with-smoothing": {"attention": change(0.04, -0.03)},
        },
    }
    table = tables.ablation_tables.details([made])
    assert "**made-up**, k = 32, 30 % of the labels wrong (asymmetric), 2 seeds:" in table
    assert "| 1 head in place of 4 | - | - | +.0200 [.0100, .0300] |" in table
    assert "| `attention-with-smoothing` | .7500 ± .0100 | .5000 ± .0200 | +.0400 [.0300, .0500] |" in table
    assert "- not run: 2 cells, no time\n- repeat: `attnknn study ablation`\n" in table
    assert "| `label_bias` | 0.5 | 0.25 | +.0200 [.0100, .0300] | -.0100 [-.0300, .0100] |" in table
    assert "| `neighbor_dropout` | - | - | +.0200 [.0100, .0300]" in table
    assert "| all of them | - | - | +.0500 [.0400, .0600] | -.0300 [-.0500, -.0100] |" in table
    del made["differences"]["attention-all-label_bias"]  # a part that was not run
    of_one_seed = made["differences"]["attention-all-prototypes"]["attention-all"]["nll"]
    of_one_seed |= {"low": None, "high": None}
    table = tables.ablation_tables.details([made])
    assert "| `label_bias` | 0.5 | 0.25 | - | - |" in table
    assert "| `prototypes` | 0.5 | 0.25 | +.0200 | -.0100 [-.0300, .0100] |" in table
    del made["methods"]["attention-all"]  # trainings alone
    table = tables.ablation_tables.details([made])
    assert "| part |" not in table
    assert "| `attention-with-smoothing` |" in table


def token_report(seeds=3, **gaps):
    """Two variants, and differences by the names of their pairs: mean and half the interval."""
    options = {"num_epochs": 30, "optimizer": "adamw", "lr": 0.001, "scheduler": "cosine", "weight_decay": 0.05}
    options |= {"batch_size": 256, "select": "loss", "augment": True, "use_amp": True, "use_compiled": False}
    images = {"train": 45000, "validation": 5000, "test": 10000}
    sizes = {"img_size": 32, "patch_size": 4, "num_layers": 12}
    about = {"config": {"layer": "ConvNNAttention", "K": 9}, "parameters": 5486218, "gflops": 0.75}
    alone = {"ms_per_step": 12.25, "peak_memory": 2**31, "device": "made-up"}
    scores = {"accuracy": estimate(0.75, 0.01, seeds), "validation_accuracy": estimate(0.76, 0.01, seeds)}
    scores |= {"train_accuracy": estimate(0.5, 0.02, seeds)}
    pairs = {
        "gain": ("convnn-random-16", "attention"),
        "control": ("convnn-random-16", "attention-random-16"),
        "keys": ("attention-random-16", "attention"),
        "convolution": ("convnn", "kvt"),
    }
    differences = {}
    for name, gap in gaps.items():
        one, two = pairs[name]
        found = {"accuracy": {**estimate(*gap), "seeds": list(range(seeds))}}
        differences.setdefault(one, {})[two] = found
    return {
        "config": {"data": "cifar10", "images": images, **sizes, "options": options},
        "methods": {"convnn": scores, "kvt": scores},
        "variants": {"convnn": {**about, "alone": alone}, "kvt": {**about, "alone": {"error": "Boom: no room"}}},
        "differences": differences,
        "not_run": ["local", "branch-conv"],
    }


def test_the_table_of_token_layers_has_cost_measured_alone_and_says_what_is_missing(tables):
    text = tables.vit_tables.details([token_report(convolution=(0.02, 0.01))])
    assert "**cifar10**, 32 px in patches of 4, 12 layers, 45,000 images to learn from" in text
    scores = ".7500 ± .0100 | .7600 ± .0100 | .5000 ± .0200 | 3 | 5,486,218 | 0.750"
    assert f"| `convnn` | {scores} | 12.2 | 2,048 MiB |" in text
    assert f"| `kvt` | {scores} | - | - |" in text
    assert "the best of them by validation loss" in text
    assert "- convnn has higher accuracy than kvt: +.0200 [.0100, .0300] over 3 seeds" in text
    assert "- could not be timed: `kvt` (Boom: no room)\n- not run: `local`, `branch-conv`" in text
    assert "survive the control" not in text


@pytest.mark.parametrize(
    ("gain", "control", "answer"),
    [
        ((0.02, 0.01), (0.02, 0.01), "yes, attention over as many random keys stays below it"),
        ((0.02, 0.01), (0.0, 0.01), "it is not shown to, no difference was found"),
        ((0.02, 0.01), (-0.02, 0.01), "no, attention over as many random keys is above it"),
        ((0.0, 0.01), (0.02, 0.01), "no gain was found to begin with, no difference was found from plain"),
        ((-0.02, 0.01), (0.02, 0.01), "no gain was found to begin with, ConvNN over random candidates lies below"),
        ((0.02, None), (0.02, None), "cannot be answered"),
    ],
)
def test_the_control_of_random_candidates_is_answered_by_what_intervals_allow(tables, gain, control, answer):
    made = token_report(1 if gain[1] is None else 3, gain=gain, control=control, keys=gain)
    text = tables.vit_tables.details([made])
    assert f"- **does ConvNN's gain by 16 random candidates survive the control?** {answer}" in text
    assert "by 32 random candidates" not in text
    assert text.count("convnn-random-16 and attention") + text.count("convnn-random-16 has") == 2


def test_the_short_table_of_token_layers_has_a_column_for_each_report(tables):
    plain = token_report()
    plain["config"]["options"]["augment"] = False
    lines = tables.vit_tables.summary([token_report(), plain]).splitlines()
    assert lines[0] == "| layer | cifar10, shifted and flipped | cifar10, not augmented |"
    assert "| `convnn` | .7500 ± .0100 | .7500 ± .0100 |" in lines
    assert "| `local` | - | - |" in lines


def test_layers_at_the_size_of_the_reference_stand_beside_its_runs_of_any_heads(tables):
    assert "| `convnn` | .7500 ± .0100 | .7439 and .7533 (1 head) |" in tables.vit_tables.beside([token_report()])


def test_the_page_says_what_was_set_of_each_layer_and_how_long_its_trainings_took(tables):
    made = token_report()
    made["variants"]["kvt"]["config"] = {"layer": "KvtAttention", "img_size": 32, "num_heads": 1, "K": 7}
    epochs = [{"seconds": 40.0}, {"seconds": 60.0}]
    made["cells"] = {"convnn": {"0": {"epochs": epochs}}, "kvt": {"0": {"epochs": epochs[:1]}}}
    text = tables.vit_tables.details([made])
    assert "`convnn` ConvNNAttention, K 9; `kvt` KvtAttention, num_heads 1, K 7\n" in text
    # 45,000 images in batches of 256, 30 epochs, 12.25 ms a step
    assert "a training took 40 to 100 s as it was run; its 5,250 steps take 64 s alone on the device" in text


def test_the_page_explains_only_variants_of_token_layers_that_its_tables_hold():
    text = (ROOT / "docs/reference/results.md").read_text()
    section = text.partition("## Token layers side by side")[2].partition("\n## ")[0]
    prose = re.sub(r"<!-- (\S+):.*?<!-- /\1 -->", "", section, flags=re.S)
    records = [json.loads(path.read_text()) for path in (ROOT / "results/vit").glob("cifar*.json")]
    ran = {name for record in records for name in record["methods"]}
    absent = {name for record in records for name in record["not_run"]} - ran
    told = set(re.findall(r"`([^`]+)`", prose))
    assert not told & (absent | {name.partition("-")[2] for name in absent})
    assert "`convnn-random-32`" in prose


def test_the_costs_of_token_layers_are_shares_of_plain_attention_with_machine_and_commit(tables):
    def cost(seconds, mib):
        return {"ratios": {"plain:3": {"seconds": seconds, "mib": mib}}}

    found = {"1024": {"forward": cost(0.5, 0.25), "forward_backward": cost(1.5, 2)}}
    config = {"dim": 192, "K": 9, "batch": {"1024": 2}, "threads": 1, "processes": 5}
    machine = {"device": "cpu", "cores": 2, "processor": "made-up", "versions": {"torch": "2.0"}}
    made = {"command": "attnknn vit bench", "commit": "0123456789abcdef", "config": config, "environment": machine}
    text = tables.vit_tables.costs([{**made, "methods": {"kvt:3": found}}])
    assert "| layer:heads | 1,024, forward | 1,024, forward + backward |" in text
    assert "| `kvt:3` | 0.50 / 0.25 | 1.50 / 2.00 |" in text
    assert "cpu, 2 cores (made-up), threads: 1, torch 2.0, commit 0123456789" in text
    assert "vit-bench:" in (ROOT / "docs/reference/results.md").read_text()


def test_the_tables_of_token_layers_are_empty_before_there_are_results(tables, tmp_path):
    page = "<!-- vit: made -->\nold\n<!-- /vit -->\n<!-- vit-224: made -->\n<!-- /vit-224 -->\n"
    assert tables.updated(page, tmp_path) == page.replace("old\n", "")
