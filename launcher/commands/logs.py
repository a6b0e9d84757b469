"""`launch logs`: the output of the hosts so far, and their further output."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.core.formatting import plural
from launcher.core.json_output import print_json_line
from launcher.core.printable import coloured
from launcher.executors.follow import detached
from launcher.runs.folder import RunFolderError, is_alive
from launcher.runs.host_logs import FOLLOWED_TAIL, POLL_INTERVAL_S, HostLogs, OnLine
from launcher.runs.status import describe, read_status
from launcher.ui.plan_view import host_color


@dataclass(frozen=True)
class LogLine:
    """A line that a host's program has printed."""

    host: int
    """Number of the host, from 0; of the process where hosts have several."""
    line: str


def show_logs(
    folder: Path, *, host: int | None, tail: int | None, follow: bool, as_json: bool
) -> None:
    """Prints logs, and with `follow` new lines until the run ends.

    Raises RunFolderError for a host that has no log, and InterruptError after Ctrl-C.
    """
    logs = HostLogs(folder, FOLLOWED_TAIL if follow and tail is None else tail, host)
    if host is not None and host not in logs.hosts and not (follow and is_alive(folder)):
        known = ", ".join(map(str, logs.hosts)) or "none"
        all_of_them = plural(logs.noun).capitalize()
        raise RunFolderError(
            f"{folder}: there is no log of {logs.noun} {host}. {all_of_them} with a log: {known}"
        )
    print_line = _printer(logs, alone=host is not None, as_json=as_json)
    try:
        _copy(logs, folder, print_line, follow)
    except KeyboardInterrupt:
        logs.finish(print_line)
        raise detached(folder) from None
    logs.finish(print_line)
    if follow:
        print(describe(read_status(folder)), file=sys.stderr)


def _copy(logs: HostLogs, folder: Path, on_line: OnLine, follow: bool) -> None:
    while True:
        alive = is_alive(folder)  # before the read, so that no output before the end is missed
        found = logs.read(on_line)
        sys.stdout.flush()
        if not follow or not (found or alive):
            return
        if not found:
            time.sleep(POLL_INTERVAL_S)


def _printer(logs: HostLogs, *, alone: bool, as_json: bool) -> OnLine:
    """Returns a function that prints a line: as JSON, alone, or after the name of its host."""
    if as_json:
        return lambda host, line: print_json_line(LogLine(host, line))
    if alone:
        return lambda _, line: print(coloured(line))
    console, prefixes = Console(), {}

    def print_line(host: int, line: str) -> None:
        if host not in prefixes:
            prefix = Text(f"{logs.noun} {host} ", style=host_color(host))
            prefixes[host] = _rendered(console, prefix)
        print(prefixes[host] + coloured(line))

    return print_line


def _rendered(console: Console, text: Text) -> str:
    """Renders text, with colours if the console is a terminal."""
    with console.capture() as capture:
        console.print(text, end="")
    return capture.get()
