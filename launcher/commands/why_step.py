"""`launch why RUN --step N`: the examples of a step with the highest loss, and their documents."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from launcher.commands.trainer_tool import run_tool
from launcher.core.errors import UsageError
from launcher.core.printable import plain
from launcher.runs.folder import launched_in
from launcher.ui.console import table_console
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.protocol.reports import DocumentLoss, ExampleLoss, StepExamples

WITHOUT_TRAINER = (
    "--step: the run has a `command`. Only Slipway's own trainer knows the examples of a step"
)


def examples_of(folder: Path, step: int, top: int) -> StepExamples:
    """Computes a step of a run again, in a child process that uses JAX.

    Raises UsageError for a run of another program, and what `run_tool` raises.
    """
    if isinstance(load_job(folder / "job.yaml").value, CommandJob):
        raise UsageError(WITHOUT_TRAINER)
    arguments = [str(folder.absolute()), f"--step={step}", f"--top={top}"]
    return _parsed(json.loads(run_tool("explain_step", arguments, launched_in(folder))))


def show(found: StepExamples) -> None:
    """Prints the examples as text."""
    console = table_console()
    for style, line in _lines(found):
        console.print(Text(plain(line), style=style), soft_wrap=True)


def _lines(found: StepExamples) -> Iterator[tuple[str, str]]:
    """Yields (style, line)."""
    again = "" if found.recorded_loss is None else f" (recorded: {found.recorded_loss:.4f})"
    norm = _number(found.grad_norm)
    yield "bold", f"step {found.step}: loss {_number(found.loss)}{again}, gradient norm {norm}"
    start = f"the checkpoint of step {found.from_step}" if found.from_step else "the start"
    yield "", f"computed again from {start}, with {found.step - found.from_step - 1} steps between"
    if found.is_excluded:
        yield "", "the run has rewound at this step, and excluded its examples"
    for note in found.notes:
        yield "yellow", f"changed since the checkpoint: {note}"
    shown = len(found.examples)
    yield "bold", f"the {shown} of its {found.count} examples with the highest loss"
    for example in found.examples:
        yield "", f"{_number(example.loss):>9}  example {example.example}"
        for document in sorted(example.documents, key=_rank):
            yield "cyan", f"{_number(document.loss):>11}  {_described(document)}"
            yield "dim", f"{'':13}{document.text!r}"


def _described(part: DocumentLoss) -> str:
    last = part.first_token + part.tokens - 1
    source = f" of {part.source}" if part.source else ""
    return f"{part.document}{source}, tokens {part.first_token} to {last}, in {part.file}"


def _rank(part: DocumentLoss) -> float:
    return -(part.loss or 0.0)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _parsed(fields: Mapping[str, Any]) -> StepExamples:
    examples = [
        ExampleLoss(
            one["example"], one["loss"], [DocumentLoss(**part) for part in one["documents"]]
        )
        for one in fields["examples"]
    ]
    return StepExamples(**{**fields, "examples": examples})
