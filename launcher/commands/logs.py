"""`launch logs`: what the hosts printed, and what they go on to print."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.display import host_color
from launcher.exits import INTERRUPTED, OK
from launcher.host.log_files import Lines, LogFile
from launcher.outcome import host_name
from launcher.printable import coloured
from launcher.record.snapshot import describe, take
from launcher.runs import RunFolderError, is_alive, run_word

LOOK_S = 0.2
FOLLOWED_TAIL = 10
"""Lines of each host's past that a command which follows them begins with, unless it is told."""

OnLine = Callable[[int, str], None]


class HostLogs:
    """The logs of a run's hosts as they grow; hosts that come later are found too."""

    def __init__(self, folder: Path, tail: int | None, host: int | None = None) -> None:
        self._folder, self._tail, self._host = folder / "logs", tail, host
        self._open: dict[int, tuple[LogFile, Lines]] = {}

    @property
    def hosts(self) -> list[int]:
        """Of which there is a log."""
        names = (path.stem.removeprefix("host-") for path in self._folder.glob("host-*.log"))
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self, on_line: OnLine) -> bool:
        """Hand over what is new, host by host; whether there was anything."""
        found = False
        for host in self.hosts if self._host is None else [self._host]:
            log, lines = self._log(host)
            while chunk := log.read():
                found = True
                for line in lines.add(chunk):
                    on_line(host, line)
        self._tail = None  # a host that comes later is read from its first line on
        return found

    def finish(self, on_line: OnLine) -> None:
        """Hand over last lines that no newline ended."""
        for host, (log, lines) in self._open.items():
            for line in lines.rest():
                on_line(host, line)
            log.close()

    def _log(self, host: int) -> tuple[LogFile, Lines]:
        if host not in self._open:
            path = self._folder / f"{host_name(host)}.log"
            self._open[host] = LogFile(path, self._tail), Lines()
        return self._open[host]


def show_logs(
    folder: Path, *, host: int | None, tail: int | None, follow: bool, as_json: bool
) -> int:
    """Print logs, and with `follow` what is added until the run is over; returns the exit code.

    Raises RunFolderError for a host that has no log.
    """
    logs = HostLogs(folder, FOLLOWED_TAIL if follow and tail is None else tail, host)
    if host is not None and host not in logs.hosts and not (follow and is_alive(folder)):
        known = ", ".join(map(str, logs.hosts)) or "none"
        raise RunFolderError(f"{folder}: there is no log of host {host}. Hosts with a log: {known}")
    print_line = _printer(alone=host is not None, as_json=as_json)
    try:
        _copy(logs, folder, print_line, follow)
    except KeyboardInterrupt:
        logs.finish(print_line)
        tell_let_go(folder)
        return INTERRUPTED
    logs.finish(print_line)
    if follow:
        _tell(describe(take(folder)))
    return OK


def tell_let_go(folder: Path) -> None:
    """After Ctrl-C in a command that only looks on."""
    word = run_word(folder)
    _tell(f"let go: {folder.name} runs on. To stop it, with a checkpoint: launch stop {word}")


def _copy(logs: HostLogs, folder: Path, on_line: OnLine, follow: bool) -> None:
    while True:
        alive = is_alive(folder)  # before the read: what was said before the end is not missed
        found = logs.read(on_line)
        sys.stdout.flush()
        if not follow or not (found or alive):
            return
        if not found:
            time.sleep(LOOK_S)


def _printer(*, alone: bool, as_json: bool) -> OnLine:
    """How a line is shown: as JSON, alone, or after the name of its host."""
    if as_json:
        return lambda host, line: print(json.dumps({"host": host, "line": line}))
    if alone:
        return lambda _, line: print(coloured(line))
    console, prefixes = Console(), {}

    def print_line(host: int, line: str) -> None:
        if host not in prefixes:
            prefixes[host] = _rendered(console, Text(f"host {host} ", style=host_color(host)))
        print(prefixes[host] + coloured(line))

    return print_line


def _rendered(console: Console, text: Text) -> str:
    """With colours where it goes to a terminal."""
    with console.capture() as capture:
        console.print(text, end="")
    return capture.get()


def _tell(message: str) -> None:
    """Beside the lines, not among them."""
    print(message, file=sys.stderr)
