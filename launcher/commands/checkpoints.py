"""Lists, verifies and exports the checkpoints of a run, in place. Does not import JAX."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.commands.lineage import write_card
from launcher.commands.trainer_tool import run_tool
from launcher.core.errors import docs_link
from launcher.core.formatting import describe_hosts, format_bytes, format_seconds
from launcher.host.reaper import die_with_parent
from launcher.runs.checkpoints import Entry
from trainer.contract.planning.sharding_rules import mesh_text
from trainer.contract.records.checkpoint_metadata import PROBLEM

NOT_VERIFIED = "not verified"


@dataclass(frozen=True, kw_only=True)
class CheckpointResult:
    """A step folder of a run. Fields of a checkpoint whose about.json cannot be read are None."""

    step: int
    folder: str
    whole: bool
    """Whether the run can resume from it, as far as it was checked."""
    verified: bool
    """Whether every array was read and matches its digest."""
    problem: str | None
    """Why the run cannot resume from it; None when no problem is known."""
    bytes: int | None = None
    time: float | None = None
    """Start of the save, in seconds since the epoch."""
    examples: int | None = None
    """Number of examples that it was trained on."""
    attempt: int | None = None
    """Number of the attempt that saved it, from 1."""
    loss: float | None = None
    """Training loss of the step."""
    eval_loss: float | None = None
    """Loss of an evaluation after exactly this step; None without one."""
    hosts: int | None = None
    devices_per_host: int | None = None
    mesh: Mapping[str, int] | None = None
    """Size of each axis."""

    @classmethod
    def of(cls, entry: Entry) -> "CheckpointResult":
        """Returns an entry for a command's JSON output."""
        found = cls(
            step=entry.step,
            folder=str(entry.folder),
            whole=not entry.problem,
            verified=entry.verified,
            problem=entry.problem or None,
        )
        about = entry.about
        if about is None:
            return found
        return replace(
            found,
            bytes=about.bytes,
            time=about.time,
            examples=about.examples,
            attempt=about.attempt,
            loss=about.loss,
            eval_loss=about.eval_loss,
            hosts=about.world.hosts,
            devices_per_host=about.world.devices_per_host,
            mesh=about.mesh,
        )


@dataclass(frozen=True, kw_only=True)
class RestoredCheckpoint:
    """A checkpoint that had been moved aside as damaged."""

    step: int
    folder: str
    """Its folder before the command."""
    restored: bool
    """Whether it is whole and was put back."""
    problem: str | None
    """Why it stays aside."""


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """A checkpoint whose weights were exported."""

    step: int
    checkpoint: str
    """The checkpoint's folder."""
    folder: str
    """The folder with the exported files."""
    message: str
    """Description for the user."""


def show(found: Sequence[Entry], folder: str, run: str) -> None:
    """Prints the checkpoints as a table, newest first."""
    console = Console()
    if not found:
        console.print(Text(f"no checkpoint in {folder}"), soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("step", "size", "age", "loss", "eval loss", "saved on", "state"):
        table.add_column(title, justify="left" if title in ("saved on", "state") else "right")
    for entry in found:
        table.add_row(*_cells(entry), Text(entry.state, style="red" * bool(entry.problem)))
    console.print(table)
    if any(entry.is_aside for entry in found):
        hint = f"`launch checkpoints restore-damaged {run}` puts back what is whole"
        console.print(Text(f"{hint}. {docs_link('damaged-checkpoints')}"), soft_wrap=True)


def verified(found: Sequence[Entry]) -> list[Entry]:
    """Returns the entries after a child process has read every array: the digests need JAX."""
    judged = _verify([str(entry.folder) for entry in found if not entry.problem])
    return [
        entry if entry.problem else _judged(entry, judged[str(entry.folder)]) for entry in found
    ]


def put_back(found: Sequence[Entry]) -> Iterator[RestoredCheckpoint]:
    """Puts back whole checkpoints that were moved aside; yields each one that was aside."""
    aside = [entry for entry in found if entry.is_aside]
    taken = {entry.step for entry in found if not entry.is_aside}
    judged = _verify([str(entry.folder) for entry in aside])
    for entry in aside:
        why = judged[str(entry.folder)]
        if not why and entry.step in taken:
            why = f"it is whole, but there is another checkpoint of step {entry.step}"
        if not why:
            back = entry.folder.with_name(str(entry.step))
            entry.folder.rename(back)
            (back / PROBLEM).unlink(missing_ok=True)
            taken.add(entry.step)
        yield RestoredCheckpoint(
            step=entry.step, folder=str(entry.folder), restored=not why, problem=why or None
        )


def show_put_back(results: Sequence[RestoredCheckpoint], folder: str) -> None:
    """Prints a line for each checkpoint that was aside."""
    for one in results:
        state = "whole, and put back" if one.restored else f"stays aside: {one.problem}"
        print(f"{Path(one.folder).name}: {state}")
    if not results:
        print(f"{folder}: no checkpoint was moved aside")


def _verify(folders: Sequence[str]) -> dict[str, str]:
    """Returns the problem of each step folder; "" for none."""
    if not folders:
        return {}
    child = subprocess.run(
        [sys.executable, "-m", "trainer.tools.verify_checkpoint", *folders],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(os.getpid()),
    )
    lines = [line for text in child.stdout.splitlines() if (line := _result(text))]
    silent = f"{NOT_VERIFIED}: the check ended with exit code {child.returncode}"
    return dict.fromkeys(folders, silent) | {
        line["folder"]: "" if line["ok"] else line.get("problem") or "damaged" for line in lines
    }


def export(entry: Entry, to: Path) -> ExportResult:
    """Exports a checkpoint for other programs, in a child process. Raises as `run_tool` does.

    Adds its lineage, as a model card.
    """
    message = run_tool("export_checkpoint", [str(entry.folder), f"--to={to}"]).strip()
    write_card(entry, to)
    return ExportResult(
        step=entry.step, checkpoint=str(entry.folder), folder=str(to), message=message
    )


def _cells(entry: Entry) -> list[str]:
    about = entry.about
    if about is None:
        return [str(entry.step), *[""] * 5]
    world = about.world
    return [
        str(entry.step),
        format_bytes(about.bytes),
        format_seconds(max(0.0, time.time() - about.time)),
        f"{about.loss:.4f}",
        "" if about.eval_loss is None else f"{about.eval_loss:.4f}",
        f"{describe_hosts(world)}, {mesh_text(about.mesh)}",
    ]


def _result(text: str) -> dict[str, Any] | None:
    """Parses one line of the check's output. Returns None for any other line."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"folder", "ok"} <= line.keys() else None


def _judged(entry: Entry, problem: str) -> Entry:
    return replace(entry, problem=problem, verified=not problem.startswith(NOT_VERIFIED))
