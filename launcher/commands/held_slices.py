"""Reports which Cloud TPU slices are held, since when, and their cost so far."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.core.errors import HostError
from launcher.core.files import NoStateFolderError, is_locked
from launcher.core.formatting import format_seconds
from launcher.providers.gcp.failures import trouble_of
from launcher.providers.gcp.prices import dollars_per_hour
from launcher.providers.gcp.request import wanted
from launcher.providers.gcp.slice_records import SliceRecord, list_slices, list_unreadable_slices


def print_held(run: Path | None = None) -> None:
    """Prints a line for each slice record on standard error; `run` selects one run's folder."""
    with suppress(NoStateFolderError):  # without one, no slices were requested
        for line in held_lines(run):
            print(line, file=sys.stderr)


def held_lines(run: Path | None = None) -> Iterator[str]:
    """Yields a line for each slice record whose slices may be held, whatever runs on them."""
    for folder, note in list_slices():
        if run is None or note.run == str(run):
            yield held_line(folder, note)
    if run is None:
        for folder, why in list_unreadable_slices().items():
            yield f"{folder.name}: slices may be held: {why}; launch down {folder.name}"


def held_line(folder: Path, note: SliceRecord) -> str:
    """Describes the slices, their cost and their problems."""
    line = f"{describe(note)}; launch down {note.resource_id}"
    if trouble := trouble_of(folder):
        lasts = format_seconds(max(0.0, time.time() - trouble.since))
        line += f"\n  warning: for {lasts}: {trouble.reason}"
    if not is_locked(folder / "lock"):
        line += "\n  warning: no process looks after these slices"
    return line


def describe(note: SliceRecord) -> str:
    """Describes slices, without their problems.

    Example: "NAME: v4-16 (on demand) in ZONE, project P, running, held for 3:12:00, about $82.43
    so far; run FOLDER".
    """
    try:
        slices = wanted(note.cluster)
    except HostError:
        return f"{note.resource_id}: run {note.run}"
    line = f"{note.resource_id}: {slices}, {note.stage}"
    if note.active_at is None:
        return f"{line}, no slices yet; run {note.run}"
    held_s = max(0.0, time.time() - note.active_at)
    cost = dollars_per_hour(slices)
    money = "" if cost is None else f", about ${cost * held_s / 3600:,.2f} so far"
    return f"{line}, held for {format_seconds(held_s)}{money}; run {note.run}"
