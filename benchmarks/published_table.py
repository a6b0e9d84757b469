"""Writes docs/reference/published.md: the table of published measurements and forecasts."""

from collections.abc import Callable, Mapping, Sequence

from benchmarks.published_compare import (
    HALVES,
    KINDS,
    Comparison,
    Forecast,
    compare,
    errors_of,
    stored,
)
from benchmarks.published_gap import gap
from benchmarks.published_rows import ROOT, Row, load
from trainer.contract.estimates.forecast import (
    ATTENTION,
    COLLECTIVES,
    HOST,
    MATRIX_PRODUCTS,
    OTHER_FUSIONS,
)

PAGE = ROOT / "docs" / "reference" / "published.md"
HEAD = """\
# Published measurements

Public measurements of training speed, and what `launch plan --compile` forecasts for the closest
job. `docs/published/measurements.yaml` has sources, settings and jobs. One command makes
the forecasts and this page:

```console
$ uv run --extra tpu python benchmarks/published.py --write
```

Half of the rows may set constants of the forecast; the other half only tests it. Which row is in
which half was fixed when the rows were collected, before any of their steps was compiled: each half
has every chip, small and large models, and experts. Speeds are tokens per second and chip, rows are
sequences per JAX device. Where a source gives TFLOP/s only (marked
`*`), the speed follows from its own count of FLOPs. The estimate is what `launch plan` prints
without the compiler; the forecast follows the compiled step. Each has two errors in brackets, above
0 if the figure is faster than the measurement: of the job as it is, and like for like. The second
one is what the figure would be if the backward pass computed exactly the same again as theirs, with
as many kernels for attention: matrix products and attention in proportion to their FLOPs. The
fastest job is one that
`launch plan --search` finds for the same model, batch and length. A row is ahead if the forecast of
either job is above the measurement. All figures of Slipway are computed; no row was run on TPUs.
"""
PARTS_HEAD = """\
Seconds of a step. The parts add up to the step. Collectives, by mesh axis, and copies count as far
as the core waits for them. Tokens are per second and JAX device.
"""
GAPS_HEAD = """\
Rows that are not ahead, by the faster one of their two jobs: seconds of the forecast step and of
the measured one, and what makes up the difference. Recomputation is what the backward pass computes
again and theirs does not; below 0 if theirs computes more. The attention kernel is what one kernel
for all gradients saves, where only theirs has one; below 0 where only ours has. The rest is all
else: what the forecast gets wrong, and what theirs does better.
"""
MISSING_HEAD = """\
What Slipway lacks in these rows, and in those without a forecast:
"""
ERRORS_HEAD = """\
Why the forecast or the estimate of a row is more than 25 % off:
"""
PARTS = {
    "products": MATRIX_PRODUCTS,
    "attention": ATTENTION,
    "other fusions": OTHER_FUSIONS,
    "collectives": COLLECTIVES.format(""),
    "copies": "waits for ",
    "host": HOST,
}
"""What the names of the parts in a column begin with."""


def page(rows: Sequence[Row], results: Mapping[str, Forecast]) -> str:
    """Returns the text of docs/reference/published.md."""
    compared = list(compare(rows, results))
    parts = [HEAD, _summary_table(compared)]
    for half, purpose in HALVES.items():
        of_half = [c for c in compared if c.row.half == half]
        parts.append(f"## Rows of the half that {purpose}\n\n{_table(of_half)}")
    parts.append(f"## Parts of the forecasts\n\n{PARTS_HEAD}\n{_parts_table(compared)}")
    parts.append(f"## What is missing\n\n{GAPS_HEAD}\n{_gaps_table(compared)}")
    missing = _texts(compared, "what is missing", lambda row: row.missing)
    parts.append(f"{MISSING_HEAD}\n{missing}")
    errors = _texts(compared, "why", lambda row: row.explains)
    parts.append(f"## Large errors\n\n{ERRORS_HEAD}\n{errors}")
    differences = _texts(compared, "in Slipway's job", lambda row: row.differs)
    parts.append(f"## What differs\n\n{differences}")
    return "\n".join(parts)


def _summary_table(compared: Sequence[Comparison]) -> str:
    lines = ["| | half | rows | median error | largest error |", "|---|---|---|---|---|"]
    for kind in KINDS:
        for half in HALVES:
            found = errors_of(compared, half, kind)
            count = f"{len(found.found)} of {found.rows}"
            lines.append(f"| {kind} | {half} | {count} | {found.median} | {found.largest} |")
    ahead = sum(c.is_ahead is True for c in compared)
    behind = sum(c.is_ahead is False for c in compared)
    text = f"Rows ahead: {ahead}. Not ahead: {behind}. Open: {len(compared) - ahead - behind}."
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
        speed = c.estimate and c.estimate.tokens_per_s_per_chip
        estimate = _cell(speed, c.error_of_estimate, c.alike_of_estimate) or "-"
        cells = f"{estimate} | {_forecast_cell(c)} | {fastest} | {ahead}"
        lines.append(f"| [{row.id}]({row.source.url}) | {size} | {published} | {cells} |")
    return _spaced("\n".join(lines)) + "\n"


def _forecast_cell(compared: Comparison) -> str:
    speed = compared.tokens_per_s_per_chip
    return _cell(speed, compared.error, compared.alike) or compared.missing


def _cell(speed: float | None, error: float | None, alike: float | None) -> str:
    """Returns a speed with its error, and the error like for like; "" when there is none."""
    if speed is None or error is None or alike is None:
        return ""
    return f"{speed:,.0f} ({error:+.1%}; {alike:+.1%})"


def _parts_table(compared: Sequence[Comparison]) -> str:
    head = ["row", *PARTS, "step", "tokens/s", "MFU"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for c in [one for both in compared for one in (both, both.best) if one]:
        if c.result is None or c.result.forecast is None:
            continue
        found = c.result.forecast
        columns = [part_cell(start, c.result.parts) for start in PARTS.values()]
        speed = f"{found['tokens_per_s_per_device']:,.0f} | {found['mfu']:.1%}"
        lines.append(
            f"| {c.row.id} | {' | '.join(columns)} | {c.result.step_time_s:.3f} | {speed} |"
        )
    return _spaced("\n".join(lines)) + "\n"


def part_cell(start: str, parts: Mapping[str, float]) -> str:
    """Returns the seconds of the parts whose names begin with `start`; collectives by axis."""
    found = {
        name.removeprefix(start): seconds
        for name, seconds in parts.items()
        if name.startswith(start)
    }
    if start == PARTS["collectives"]:
        return ", ".join(f"{axis} {seconds:.3f}" for axis, seconds in found.items()) or "0.000"
    return f"{sum(found.values()):.3f}"


def _gaps_table(compared: Sequence[Comparison]) -> str:
    lines = [
        "| job | forecast | measured | recomputation | attention kernel | rest |",
        "|---|---|---|---|---|---|",
    ]
    for one in filter(None, map(gap, compared)):
        causes = (one.recomputation_s, one.kernel_s, one.rest_s)
        seconds = (one.step_s, one.measured_s, *causes)
        lines.append(f"| {one.name} | {' | '.join(f'{s:.3f}' for s in seconds)} |")
    return "\n".join(lines) + "\n"


def _texts(compared: Sequence[Comparison], title: str, text: Callable[[Row], str | None]) -> str:
    """Returns a table of the rows that have a text."""
    lines = [f"| row | {title} |", "|---|---|"]
    lines += [f"| {c.row.id} | {found} |" for c in compared if (found := text(c.row))]
    return "\n".join(lines) + "\n"


def _spaced(text: str) -> str:
    """Puts a space between figures and percent signs, as on the other pages."""
    return text.replace("%", " %")


if __name__ == "__main__":
    PAGE.write_text(page(load(), stored()), encoding="utf-8")
