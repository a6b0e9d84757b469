"""Notices of a run, and what became of them."""

import json
import time
from pathlib import Path
from typing import Any

from launcher.core.events import StateEvent
from launcher.core.states import RunState
from launcher.notify.notices import Notice, RunProgress
from launcher.notify.outbox import NAME
from trainer.contract.config.notify import NotifyEvent


def notice_of(event: NotifyEvent, folder: Path = Path("/runs/small"), **fields: Any) -> Notice:
    progress = RunProgress(run="small", folder=str(folder), cluster="pod", steps=40)
    state = StateEvent(time=time.time(), attempt=1, state=RunState.FAILED)
    return progress.notice(event, state, fields.get("message", "host-0001 was killed"))


def outcomes(folder: Path) -> list[tuple[str, str]]:
    """Returns (event, sent or given_up) of each line that ends a notice, in order."""
    return [(line["event"], line["status"]) for line in lines(folder) if line["status"] != "queued"]


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / NAME
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
