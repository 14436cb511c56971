"""Write ``format-2/``: a trained classifier of two members that every later version must read.

Run it once, when a format is new: ``python tests/golden/make_format_2.py``. Never write it again for an old
format number: the test would then only show that the code agrees with itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd

from attnknn import AttentionOptions, AttnKNNClassifier, TrainingOptions

FOLDER = Path(__file__).parent / "format-2"


def table(count: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A number and a category, some of them missing; either may tell the class."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"size": draw.normal(size=count).round(2), "kind": draw.choice(["a", "b"], count)})
    label = np.where((frame["size"] > 0) ^ (frame["kind"] == "a"), "yes", "no")
    frame.loc[::9, "size"] = np.nan
    frame.loc[::11, "kind"] = None
    return frame, label


def main() -> None:
    model = AttnKNNClassifier(
        5,
        n_estimators=2,
        attention=AttentionOptions(
            heads=2, head_dim=3, hidden=4, distance_bias=True, prototypes=True, self_attention=True
        ),
        training=TrainingOptions(epochs=4, lr=1e-2, embed_dim=3),
        device="cpu",
        random_state=0,
    )
    # So few rows would not convince the judges; the file must hold an attention all the same.
    with mock.patch("attnknn.estimator.fitting.helps", return_value=True):
        model.fit(*table(48, 0), ids=[f"row {at}" for at in range(48)])
    model.save(FOLDER / "model")
    (FOLDER / "model" / ".lock").unlink(missing_ok=True)  # only saving needs it
    asked = table(10, 1)[0]
    said = model.explain(asked)
    recorded = {
        "classes": model.classes_.tolist(),
        "rows": json.loads(asked.to_json(orient="records")),
        "probabilities": np.asarray(model.predict_proba(asked)).tolist(),
        "weights": [{reason.id: reason.weight for reason in each.neighbors} for each in said],
    }
    (FOLDER / "expected.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
