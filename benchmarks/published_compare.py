"""The comparison of forecasts with published measurements, and its errors."""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from benchmarks.published_remat import like_for_like
from benchmarks.published_rows import ROOT, Row, Speed, plan, published_speed
from launcher.planning.forecast import forecast
from launcher.planning.planner import TrainingLaunch

FORECASTS = ROOT / "docs" / "published" / "forecasts.json"
"""The results behind docs/reference/published.md, by the id of the row."""
HALVES = {"calibrate": "may set constants", "test": "only tests"}


class Forecast(BaseModel):
    """What `launch plan --compile` found for a row's job."""

    job: str
    """Hash of job and cluster."""
    code: str
    versions: dict[str, str]
    seconds: float | None = None
    """How long planning and compiling took."""
    problem: str | None = None
    """Why there is no forecast."""
    is_transient: bool = False
    """Whether the problem may be gone the next time, and is not kept."""
    forecast: dict[str, Any] | None = None
    """`forecast` of the command's JSON output."""

    @property
    def step_time_s(self) -> float:
        """Expected seconds of a step."""
        assert self.forecast
        return self.forecast["step_time_s"]

    @property
    def tokens_per_s_per_device(self) -> float:
        """Expected tokens per second of a JAX device."""
        assert self.forecast
        return self.forecast["tokens_per_s_per_device"]

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of a step by what they go into."""
        assert self.forecast
        return dict(_seconds(self.forecast.get("parts") or {}))


def _seconds(parts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yields all numbers of nested parts, with their path."""
    for name, value in parts.items():
        if isinstance(value, Mapping):
            yield from _seconds(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)


@dataclass(frozen=True)
class Estimate:
    """Tokens per second and chip that are estimated from the plan, without the compiler."""

    tokens_per_s_per_chip: float
    alike: float
    """The speed if the step recomputed what the source's does."""


@dataclass(frozen=True)
class Comparison:
    """A row, and the forecast of its job as far as there is one."""

    row: Row
    published: Speed
    estimate: Estimate | None
    result: Forecast | None
    best: "Comparison | None" = None
    """The comparison of the row's fastest job; None if it is the same job."""

    @property
    def is_ahead(self) -> bool | None:
        """Whether a forecast is above the published speed; None without a forecast."""
        both = [self.error, self.best and self.best.error]
        known = [error for error in both if error is not None]
        return any(error > 0 for error in known) if known else None

    @property
    def tokens_per_s_per_chip(self) -> float | None:
        """The forecast speed; None without a forecast."""
        if self.result is None or self.result.forecast is None:
            return None
        return self.result.tokens_per_s_per_device * self.row.devices_per_chip

    @property
    def error(self) -> float | None:
        """Forecast over published speed, minus 1; None without a forecast."""
        return self._error_of(self.tokens_per_s_per_chip)

    @property
    def alike(self) -> float | None:
        """The error if the step recomputed what the source's does; None without a forecast."""
        ours = self.tokens_per_s_per_chip
        if ours is None or self.result is None:
            return None
        launch = _launch(self.row)
        factor = _alike(self.row, launch, self.result.step_time_s, self.result.parts)
        return self._error_of(ours * factor)

    @property
    def error_of_estimate(self) -> float | None:
        """Estimate over published speed, minus 1; None without an estimate."""
        return self.estimate and self._error_of(self.estimate.tokens_per_s_per_chip)

    @property
    def alike_of_estimate(self) -> float | None:
        """`alike` of the estimate."""
        return self.estimate and self._error_of(self.estimate.alike)

    def _error_of(self, speed: float | None) -> float | None:
        return None if speed is None else speed / self.published.tokens_per_s_per_chip - 1

    @property
    def text(self) -> str:
        """The comparison in one line."""
        ours, error = self.tokens_per_s_per_chip, self.error
        theirs = f"published {self.published.tokens_per_s_per_chip:,.0f} tokens/s per chip"
        if ours is None or error is None or self.alike is None:
            return f"{theirs}, {self.missing}"
        return f"{theirs}, forecast {ours:,.0f}, {error:+.1%}; like for like {self.alike:+.1%}"

    @property
    def missing(self) -> str:
        """Why there is no forecast."""
        return (self.result and self.result.problem) or "not run yet"


def _launch(row: Row) -> TrainingLaunch:
    with tempfile.TemporaryDirectory() as folder:
        return plan(row, Path(folder))


def _alike(row: Row, launch: TrainingLaunch, step_s: float, parts: Mapping[str, float]) -> float:
    """Returns how much faster a step is that recomputes what the source's does, as a factor."""
    if row.recomputes is None or not parts:
        return 1.0
    return step_s / like_for_like(parts, launch, row.recomputes, is_fused=row.fused_attention)


def compare(rows: Sequence[Row], results: Mapping[str, Forecast]) -> Iterator[Comparison]:
    """Yields the comparison of every row; results of another job count as not run."""
    for row in rows:
        best = None if row.faster is None else next(compare([row.faster], results))
        result = results.get(row.id)
        if result is not None and result.job != row.job_hash:
            result = None
        launch = _launch(row)
        speed = published_speed(row, launch)
        yield Comparison(row, speed, _estimate(row, launch), result, best)


def _estimate(row: Row, launch: TrainingLaunch) -> Estimate | None:
    found = forecast(launch)
    if found is None:
        return None
    speed = found.tokens_per_s_per_device * row.devices_per_chip
    return Estimate(speed, speed * _alike(row, launch, found.step_time_s, found.parts))


@dataclass(frozen=True)
class Errors:
    """The absolute errors of a half, of one kind of figure."""

    rows: int
    found: list[float]

    @property
    def median(self) -> str:
        return f"{statistics.median(self.found):.1%}" if self.found else "-"

    @property
    def largest(self) -> str:
        return f"{max(self.found):.1%}" if self.found else "-"


KINDS: dict[str, Callable[[Comparison], float | None]] = {
    "forecast": lambda c: c.error,
    "forecast, like for like": lambda c: c.alike,
    "estimate": lambda c: c.error_of_estimate,
    "estimate, like for like": lambda c: c.alike_of_estimate,
}
"""The kinds of errors, by name."""


def errors_of(compared: Sequence[Comparison], half: str, kind: str) -> Errors:
    """Returns the errors of a half."""
    signed = [KINDS[kind](c) for c in compared if c.row.half == half]
    return Errors(len(signed), [abs(error) for error in signed if error is not None])


def summary(compared: Sequence[Comparison]) -> Iterator[str]:
    """Yields a line for each kind of errors and each half."""
    for kind in KINDS:
        for half in HALVES:
            found = errors_of(compared, half, kind)
            yield (
                f"{kind}, {half}: {len(found.found)} of {found.rows} rows, "
                f"median error {found.median}, largest {found.largest}"
            )


def stored(path: Path = FORECASTS) -> dict[str, Forecast]:
    """Returns the results behind the page; none without the file."""
    if not path.exists():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return {name: Forecast.model_validate(value) for name, value in values.items()}
