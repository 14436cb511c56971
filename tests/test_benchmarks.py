"""The benchmark of token layers: what is trained is not trained again, here or elsewhere, nor twice at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from attnknn.study.claims import claimed

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import vit

    return vit


@pytest.fixture
def pictures(tmp_path):
    """A folder with two classes, dark and bright."""
    from PIL import Image

    random = np.random.default_rng(0)
    for label, light in (("dark", 0), ("bright", 150)):
        folder = tmp_path / "pictures" / label
        folder.mkdir(parents=True)
        for at in range(30):
            Image.fromarray((light + random.integers(0, 100, (8, 8, 3))).astype(np.uint8)).save(
                folder / f"{at}.png"
            )
    return tmp_path / "pictures"


@pytest.fixture
def trained(bench, pictures, tmp_path, monkeypatch):
    """Trains what is asked for; returns what it trained, as (variant, seed)."""
    real = bench.run_vit

    def train(*asked, out="first"):
        cells = []

        def told(data, config, options, *, out, **rest):
            cells.append(out.name)
            return real(data, config, options, out=out, **rest)

        monkeypatch.setattr(bench, "run_vit", told)
        sizes = "--resize 8 --patch-size 4 --num-layers 1 --epochs 1 --batch-size 16 --device cpu"
        where = ["--data", str(pictures), "--out", str(tmp_path / out)]
        monkeypatch.setattr(sys, "argv", ["vit.py", *where, *sizes.split(), *asked])
        bench.main()
        return cells

    return train


def test_a_run_goes_on_from_its_folder_and_elsewhere_from_its_record(trained, tmp_path):
    save = ("--save", str(tmp_path / "record.json"))
    assert trained("--variants", "attention", "--seeds", "1", *save) == ["attention-0"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert trained("--variants", "attention,kvt", "--seeds", "1", *save) == ["kvt-0"]
    assert trained("--variants", "attention,kvt", "--seeds", "2", *save, out="elsewhere") == [
        "attention-1",
        "kvt-1",
    ]
    later = json.loads((tmp_path / "record.json").read_text())
    assert (
        later["methods"]["attention"]["accuracy"]["values"][0]
        == record["methods"]["attention"]["accuracy"]["mean"]
    )
    assert [each["n"] for each in map(counted, later["methods"].values())] == [2, 2]
    assert later["cells"]["attention"]["0"] == record["cells"]["attention"]["0"]


def counted(scores):
    return {"n": sum(value is not None for value in scores["accuracy"]["values"])}


def test_a_timing_is_kept_in_the_record_too(trained, tmp_path):
    save = ("--variants", "attention", "--save", str(tmp_path / "record.json"))
    trained("--seeds", "1", "--timing", "--steps", "1")
    trained("--seeds", "1", *save)
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["variants"]["attention"]["alone"]["ms_per_step"] > 0
    assert trained("--seeds", "1", *save, out="elsewhere") == []
    again = json.loads((tmp_path / "record.json").read_text())
    assert again["variants"] == record["variants"]


def test_what_another_process_trains_is_left_to_it(trained, tmp_path):
    with claimed(tmp_path / "first" / "attention-0" / "claim") as mine:
        assert mine
        assert trained("--variants", "attention,kvt", "--seeds", "1") == ["kvt-0"]
    assert trained("--variants", "attention,kvt", "--seeds", "1") == ["attention-0"]


def test_other_settings_need_another_folder(trained, tmp_path):
    trained("--variants", "attention", "--seeds", "1")
    save = ("--save", str(tmp_path / "record.json"))
    with pytest.raises(SystemExit, match="differ in more than the layer"):
        trained("--variants", "kvt", "--seeds", "1", "--plain", *save)
