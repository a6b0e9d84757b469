"""The index of all runs: a row each, with a sparkline of the loss and a link to the report."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.report.curves import Curve
from launcher.runs.run_record import read_metrics
from launcher.runs.status import RunStatus

SPARK_POINTS = 60


@dataclass(frozen=True)
class IndexRow:
    """A run in the index."""

    status: RunStatus
    link: str
    """Path of its report relative to the index; "" without one."""
    loss: str
    spark: str
    """Points of the loss, in percent of the sparkline's width and height, for SVG."""


def index_row(status: RunStatus, report: Path | None, index: Path) -> IndexRow:
    """Returns the row of a run; `report` is its page, None without one."""
    link = os.path.relpath(report, index.parent) if report else ""
    loss = "" if status.loss is None else f"{status.loss:.4f}"
    return IndexRow(status, link, loss, sparkline(Curve.of(read_metrics(status.folder), "loss")))


def sparkline(curve: Curve) -> str:
    """Returns the points of a small line without axes; "" without two finite values."""
    thin = curve.thinned(SPARK_POINTS)
    points = [(x, y) for x, y in zip(thin.steps, thin.values, strict=True) if y is not None]
    if len(points) < 2:
        return ""
    return " ".join(
        f"{x:.1f},{100 - y:.1f}"
        for x, y in zip(*(_percents(values) for values in zip(*points, strict=True)), strict=True)
    )


def _percents(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [100 * (value - low) / ((high - low) or 1) for value in values]
