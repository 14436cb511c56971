"""Write ``format-1/``: a saved classifier that every later version must read.

Run it once, when a format is new: ``python tests/golden/make_format_1.py``. Never write it again for an old
format number: the test would then only show that the code agrees with itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris

from attnknn import AttnKNNClassifier

FOLDER = Path(__file__).parent / "format-1"


def main() -> None:
    data = load_iris()
    X, y = data.data, data.target_names[data.target]
    model = AttnKNNClassifier(weights="softmax", calibration="density", random_state=0).fit(X[::2], y[::2])
    model.save(FOLDER / "model")
    (FOLDER / "model" / ".lock").unlink(missing_ok=True)  # only saving needs it
    rows = X[1::10]
    recorded = {
        "classes": model.classes_.tolist(),
        "rows": rows.tolist(),
        "probabilities": np.asarray(model.predict_proba(rows)).tolist(),
    }
    (FOLDER / "expected.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
