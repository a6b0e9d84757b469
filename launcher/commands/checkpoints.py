"""Lists, verifies and exports the checkpoints of a run, in place. Does not import JAX."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.errors import docs_link
from launcher.core.formatting import format_bytes, format_seconds, pluralize
from launcher.host.reaper import die_with_parent
from launcher.runs.checkpoints import Entry
from launcher.runs.directory import RunFolderError, find_run
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.planning.sharding_rules import mesh_text
from trainer.contract.records.checkpoint_metadata import (
    PROBLEM,
    folder_of,
)
from trainer.contract.storage.paths import is_url

OK, FAILED, INTERRUPTED = 0, 1, 130
NOT_VERIFIED = "not verified"


def find_folder(name_or_path: str, runs: Path) -> str:
    """Returns the checkpoint folder of a run, or the given path or URL itself.

    Raises RunFolderError when neither exists or the run's checkpoints are not Slipway's, and
    ConfigError when the run's job cannot be read.
    """
    if is_url(name_or_path):
        return name_or_path
    try:
        run_dir = find_run(name_or_path, runs)
    except RunFolderError:
        if Path(name_or_path).is_dir():
            return name_or_path
        raise
    job = load_job(run_dir / "job.yaml").value
    if isinstance(job, CommandJob):
        raise RunFolderError(f"{run_dir}: its job is a command: what it saves is its own business")
    return folder_of(job, run_dir)


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


def as_json(found: Sequence[Entry]) -> str:
    """Returns a JSON list with one object per step folder."""
    return json.dumps([_facts(entry) for entry in found], indent=2)


def verified(found: Sequence[Entry]) -> list[Entry]:
    """Returns the entries after a child process has read every array: the digests need JAX."""
    judged = _verify([str(entry.folder) for entry in found if not entry.problem])
    return [
        entry if entry.problem else _judged(entry, judged[str(entry.folder)]) for entry in found
    ]


def put_back(found: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
    """Puts back whole checkpoints that were moved aside.

    Yields each checkpoint that was aside, with the reason that it stays so; "" when it is put back.
    """
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
        yield entry, why


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


def pick(found: Sequence[Entry], folder: str, step: int | None) -> Entry:
    """Returns the whole checkpoint of a step, or the newest one. Raises RunFolderError."""
    whole = [entry for entry in found if not entry.problem]
    for entry in whole:
        if step in (None, entry.step):
            return entry
    known = ", ".join(str(entry.step) for entry in whole) or "none"
    wanted = "checkpoint" if step is None else f"whole checkpoint of step {step}"
    why = next((f" ({e.problem})" for e in found if e.step == step), "")
    raise RunFolderError(f"{folder}: no {wanted}{why}. Whole ones: {known}")


def export(entry: Entry, to: Path) -> int:
    """Exports a checkpoint for other programs in a child process; returns its exit code."""
    command = [sys.executable, "-m", "trainer.tools.export_checkpoint", str(entry.folder)]
    try:
        code = subprocess.run(
            [*command, "--to", str(to)], preexec_fn=die_with_parent(os.getpid())
        ).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if code >= 0 else FAILED


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
        f"{pluralize(world.processes, 'host')} x {pluralize(world.devices_per_host, 'device')}, "
        f"{mesh_text(about.mesh)}",
    ]


def _facts(entry: Entry) -> dict[str, Any]:
    about = entry.about
    facts: dict[str, Any] = {
        "step": entry.step,
        "folder": str(entry.folder),
        "whole": not entry.problem,
        "verified": entry.verified,
        "problem": entry.problem or None,
    }
    if about is None:
        return facts
    return {
        **facts,
        "bytes": about.bytes,
        "time": about.time,
        "examples": about.examples,
        "attempt": about.attempt,
        "loss": about.loss,
        "eval_loss": about.eval_loss,
        "hosts": about.world.processes,
        "devices_per_host": about.world.devices_per_host,
        "mesh": about.mesh,
    }


def _result(text: str) -> dict[str, Any] | None:
    """Parses one line of the check's output. Returns None for any other line."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and {"folder", "ok"} <= line.keys() else None


def _judged(entry: Entry, problem: str) -> Entry:
    return replace(entry, problem=problem, verified=not problem.startswith(NOT_VERIFIED))
