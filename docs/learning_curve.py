# /// script
# requires-python = ">=3.11"
# dependencies = ["matplotlib"]
# ///
"""The losses of a run as a picture, on standard output:

uv run --script docs/learning_curve.py runs/stdlib > docs/stdlib.svg
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

LOSSES = (("loss", "training"), ("eval_loss", "held-out"))


def draw(metrics_path: Path) -> None:
    """Cross-entropy in nats over steps; what was done again after a restart counts once."""
    lines = [json.loads(line) for line in metrics_path.read_text(encoding="utf-8").splitlines()]
    _, axes = plt.subplots(figsize=(8, 4))
    for key, label in LOSSES:
        curve = {line["step"]: line[key] for line in lines if key in line}
        axes.plot(list(curve), list(curve.values()), label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per token")
    axes.set_ylim(top=min(7.0, axes.get_ylim()[1]))
    axes.grid(alpha=0.3)
    axes.legend()


if __name__ == "__main__":
    # The same run gives the same bytes.
    plt.rcParams.update({"svg.hashsalt": "slipway", "svg.fonttype": "none"})
    draw(Path(sys.argv[1]) / "metrics.jsonl")
    plt.savefig(sys.stdout.buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
