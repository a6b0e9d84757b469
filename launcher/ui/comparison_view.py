"""A comparison of runs as text: the verdict, the differences, and a table of all runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from launcher.comparison.comparison import Comparison, Pair
from launcher.comparison.losses import MeanDifference
from launcher.comparison.resources import RunFacts
from launcher.core.formatting import format_percent, format_seconds
from launcher.core.printable import plain
from launcher.ui.console import STATE_STYLES, table_console
from trainer.contract.config.yaml import dump_inline

INDENT = (0, 0, 0, 2)
TITLES = ("step", "loss", "eval loss", "tokens", "wall time", "goodput", "chip hours")
_STYLES: Mapping[str, str] = {**STATE_STYLES}


def show(comparison: Comparison) -> None:
    """Prints each verdict with its reasons, then the table of all runs."""
    console, names = table_console(), _names(comparison.runs)
    for pair, name, verdict in zip(comparison.pairs, names[1:], verdicts(comparison), strict=True):
        console.print(Text(verdict, style="bold"), soft_wrap=True)
        if pair.differences:
            console.print(Padding(_differences(pair, names[0], name), INDENT, expand=False))
        for line in _lines(pair):
            console.print(Text(f"  {line}"), soft_wrap=True)
        console.print()
    console.print(_table(comparison.runs, names))


def verdicts(comparison: Comparison) -> list[str]:
    """Returns a sentence for each pair: the names of the runs, and the verdict."""
    (first, *others), names = comparison.runs, _names(comparison.runs)
    sentences = []
    for pair, run, name in zip(comparison.pairs, others, names[1:], strict=True):
        so_far = ", so far" * (first.alive or run.alive)
        sentences.append(f"{name} against {names[0]}{so_far}: {plain(pair.verdict.text)}")
    return sentences


def _names(runs: Sequence[RunFacts]) -> list[str]:
    """Returns the names of the runs; their folders when two have one name."""
    names = [plain(run.name) for run in runs]
    return names if len(set(names)) == len(names) else [plain(run.folder) for run in runs]


def _differences(pair: Pair, first: str, second: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", "differs", first, second):
        table.add_column(title, overflow="fold")
    for one in pair.differences:
        values = [Text(plain(_value(value))) for value in (one.first, one.second)]
        table.add_row(Text(one.group), Text(plain(one.key)), *values)
    return table


def _lines(pair: Pair) -> Iterator[str]:
    """Yields what the verdict is based on."""
    examples, losses = pair.examples, pair.losses
    if examples.first_different_step is not None:
        yield (
            f"examples: differ from step {examples.first_different_step:,} on; "
            f"{examples.same_steps:,} of {examples.common_steps:,} common steps before"
        )
    if losses is not None and losses.first_different_step is not None:
        yield (
            f"losses: differ from step {losses.first_different_step:,} on, by at most "
            f"{format_percent(losses.largest_relative_difference)}"
        )
        yield f"mean difference: {_mean(losses.all_steps)}"
        yield f"of the last half: {_mean(losses.last_half)}"
    if pair.not_recorded:
        yield f"not recorded: {', '.join(pair.not_recorded)}"


def _mean(found: MeanDifference) -> str:
    text = f"{found.mean:+.4g} over steps {found.first_step:,} to {found.last_step:,}"
    if found.low is None or found.high is None:
        return f"{text}; too few for a confidence interval"
    return f"{text}; 95 % CI {found.low:+.4g} to {found.high:+.4g}"


def _table(runs: Sequence[RunFacts], names: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    has_cost = any(run.dollars for run in runs)
    for title in (*TITLES, *(["cost"] if has_cost else [])):
        table.add_column(title, justify="right")
    for run, name in zip(runs, names, strict=True):
        state = Text(plain(run.state), style=_STYLES.get(run.state, ""))
        cost = ["" if run.dollars is None else f"${run.dollars:,.2f}"] if has_cost else []
        table.add_row(Text(name), state, *map(Text, [*_figures(run), *cost]))
    return table


def _figures(run: RunFacts) -> list[str]:
    return [
        "" if run.step is None else f"{run.step}/{run.steps}" if run.steps else f"{run.step}",
        _number(run.loss, ".4f"),
        _number(run.eval_loss, ".4f"),
        _number(run.tokens, ","),
        format_seconds(run.wall_s) if run.wall_s else "",
        _number(run.goodput, ".1%"),
        f"{run.chip_hours:.3g}",
    ]


def _number(value: float | None, spec: str) -> str:
    return "" if value is None else f"{value:{spec}}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else dump_inline(value)
