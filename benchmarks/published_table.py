"""The comparison of forecasts with published measurements: errors, and the page that shows them."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from benchmarks.published_rows import ROOT, Row, Speed, load, plan, published_speed
from launcher.planning.forecast import forecast

FORECASTS = ROOT / "docs" / "published" / "forecasts.json"
"""The results behind the page, by the id of the row."""
PAGE = ROOT / "docs" / "reference" / "published.md"
LARGE_ERROR = 0.25
"""An error from which on a row needs an explanation."""
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
class Comparison:
    """A row, and the forecast of its job as far as there is one."""

    row: Row
    published: Speed
    estimate: float | None
    """Tokens per second and chip that are estimated from the plan, without the compiler."""
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
    def error_of_estimate(self) -> float | None:
        """Estimate over published speed, minus 1; None without an estimate."""
        return self._error_of(self.estimate)

    def _error_of(self, speed: float | None) -> float | None:
        return None if speed is None else speed / self.published.tokens_per_s_per_chip - 1

    @property
    def text(self) -> str:
        """The comparison in one line."""
        ours, error = self.tokens_per_s_per_chip, self.error
        theirs = f"published {self.published.tokens_per_s_per_chip:,.0f} tokens/s per chip"
        if ours is None or error is None:
            return f"{theirs}, {self.missing}"
        return f"{theirs}, forecast {ours:,.0f}, {error:+.1%}"

    @property
    def missing(self) -> str:
        """Why there is no forecast."""
        return (self.result and self.result.problem) or "not run yet"


@cache
def _planned(row: Row) -> tuple[Speed, float | None]:
    """Plans the row's job; returns the published speed and the estimated one."""
    with tempfile.TemporaryDirectory() as folder:
        launch = plan(row, Path(folder))
    estimate = forecast(launch)
    speed = estimate and estimate.tokens_per_s_per_device * row.devices_per_chip
    return published_speed(row, launch), speed


def compare(rows: Sequence[Row], results: Mapping[str, Forecast]) -> Iterator[Comparison]:
    """Yields the comparison of every row; results of another job count as not run."""
    for row in rows:
        best = None if row.faster is None else next(compare([row.faster], results))
        result = results.get(row.id)
        is_current = result is not None and result.job == row.job_hash
        yield Comparison(row, *_planned(row), result if is_current else None, best)


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


def errors_of(compared: Sequence[Comparison], half: str, *, of_estimates: bool = False) -> Errors:
    """Returns the errors of a half's forecasts, or of its estimates."""
    rows = [c for c in compared if c.row.half == half]
    signed = [c.error_of_estimate if of_estimates else c.error for c in rows]
    known = [error for error in signed if error is not None]
    return Errors(len(rows), [abs(error) for error in known])


def summary(compared: Sequence[Comparison]) -> Iterator[str]:
    """Yields a line with the median and the largest error of each half."""
    for half in HALVES:
        forecasts = errors_of(compared, half)
        estimates = errors_of(compared, half, of_estimates=True)
        yield (
            f"{half}: {len(forecasts.found)} of {forecasts.rows} rows have a forecast, "
            f"median error {forecasts.median}, largest {forecasts.largest}; "
            f"estimates from the plan alone: {estimates.median}, {estimates.largest}"
        )


def stored(path: Path = FORECASTS) -> dict[str, Forecast]:
    """Returns the results behind the page; none without the file."""
    if not path.exists():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return {name: Forecast.model_validate(value) for name, value in values.items()}


HEAD = """\
# Published measurements

Public measurements of training speed, and what `launch plan --compile` forecasts for the closest
job. `docs/published/measurements.yaml` has sources, settings and jobs. One command makes
the forecasts and this page:

```console
$ uv run --extra tpu python benchmarks/published.py --write
```

Half of the rows may set constants of the forecast; the other half only tests it. Speeds are tokens
per second and chip, rows are sequences per JAX device. Where a source gives TFLOP/s only (marked
`*`), the speed follows from its own count of FLOPs. The estimate is what `launch plan` prints
without the compiler; the forecast follows the compiled step. A figure above the measurement has a
positive error. The fastest job is one that `launch plan --search` finds for the same model, batch
and length; a row is ahead if the forecast of either job is above the measurement. All figures of
Slipway are computed; no row was run on TPUs.
"""


def page(rows: Sequence[Row], results: Mapping[str, Forecast]) -> str:
    """Returns the text of docs/reference/published.md."""
    compared = list(compare(rows, results))
    parts = [HEAD, _summary_table(compared)]
    for half, purpose in HALVES.items():
        of_half = [c for c in compared if c.row.half == half]
        parts.append(f"## Rows of the half that {purpose}\n\n{_table(of_half)}")
    parts.append(f"## What differs\n\n{_differences(compared)}")
    return "\n".join(parts)


def _summary_table(compared: Sequence[Comparison]) -> str:
    lines = ["| | half | rows | median error | largest error |", "|---|---|---|---|---|"]
    for name, of_estimates in (("forecast", False), ("estimate", True)):
        for half in HALVES:
            found = errors_of(compared, half, of_estimates=of_estimates)
            count = f"{len(found.found)} of {found.rows}"
            lines.append(f"| {name} | {half} | {count} | {found.median} | {found.largest} |")
    ahead = sum(c.is_ahead is True for c in compared)
    behind = sum(c.is_ahead is False for c in compared)
    text = f"{ahead} rows are ahead, {behind} are not, {len(compared) - ahead - behind} are open."
    return _spaced("\n".join(lines)) + f"\n\n{text}\n"


def _table(compared: Sequence[Comparison]) -> str:
    lines = [
        "| row | chips | rows | length | published | estimate | forecast | fastest job | ahead |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in compared:
        row, theirs = c.row, c.published
        published = f"{theirs.tokens_per_s_per_chip:,.0f}{'*' if theirs.is_derived else ''}"
        ahead = {None: "-", True: "yes", False: "no"}[c.is_ahead]
        fastest = _forecast_cell(c.best) if c.best else "the same"
        size = f"{row.chips} | {row.batch_per_device:g} | {row.seq_len}"
        estimate = _cell(c.estimate, c.error_of_estimate) or "-"
        cells = f"{estimate} | {_forecast_cell(c)} | {fastest} | {ahead}"
        lines.append(f"| [{row.id}]({row.source.url}) | {size} | {published} | {cells} |")
    return _spaced("\n".join(lines)) + "\n"


def _forecast_cell(compared: Comparison) -> str:
    return _cell(compared.tokens_per_s_per_chip, compared.error) or compared.missing


def _cell(speed: float | None, error: float | None) -> str:
    """Returns a speed with its error; "" when there is none."""
    return "" if speed is None or error is None else f"{speed:,.0f} ({error:+.1%})"


def _differences(compared: Sequence[Comparison]) -> str:
    lines = ["| row | in Slipway's job |", "|---|---|"]
    lines += [f"| {c.row.id} | {c.row.differs} |" for c in compared]
    return "\n".join(lines) + "\n"


def _spaced(text: str) -> str:
    """Puts a space between figures and percent signs, as on the other pages."""
    return text.replace("%", " %")


if __name__ == "__main__":
    PAGE.write_text(page(load(), stored()), encoding="utf-8")
