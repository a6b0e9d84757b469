"""Follows the logs of a run's hosts."""

from collections.abc import Callable
from pathlib import Path

from launcher.host.log_reader import Lines, LogFile

POLL_INTERVAL_S = 0.2

NOUNS = "host", "process"
FOLLOWED_TAIL = 10
"""Default number of past lines of each host that a following command begins with."""

OnLine = Callable[[int, str], None]


class HostLogs:
    """The growing logs of a run's hosts, including hosts that appear later."""

    def __init__(self, folder: Path, tail: int | None, host: int | None = None) -> None:
        self._folder, self._tail, self._host = folder / "logs", tail, host
        self._open: dict[int, tuple[LogFile, Lines]] = {}
        self._noun: str | None = None
        """The noun, once there are logs: those of the newest attempt."""

    @property
    def noun(self) -> str:
        """What each log is of: a `host`, or a `process` where hosts have several."""
        if self._noun is None:
            logs = [path for noun in NOUNS for path in self._folder.glob(f"{noun}-*.log")]
            newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
            self._noun = newest and newest.name.partition("-")[0]
        return self._noun or NOUNS[0]

    @property
    def hosts(self) -> list[int]:
        """Numbers of the hosts, or processes, that have a log."""
        prefix = f"{self.noun}-"
        names = (path.stem.removeprefix(prefix) for path in self._folder.glob(f"{prefix}*.log"))
        return sorted(int(name) for name in names if name.isdecimal())

    def read(self, on_line: OnLine) -> bool:
        """Passes new lines to `on_line`, host by host. Returns whether anything was new."""
        found = False
        for host in self.hosts if self._host is None else [self._host]:
            log, lines = self._log(host)
            while chunk := log.read():
                found = True
                for line in lines.add(chunk):
                    on_line(host, line)
        self._tail = None  # a host that appears later is read from its first line
        return found

    def finish(self, on_line: OnLine) -> None:
        """Passes last lines without a newline to `on_line`, and closes the logs."""
        for host, (_, lines) in self._open.items():
            for line in lines.rest():
                on_line(host, line)
        self.close()

    def close(self) -> None:
        """Closes the logs."""
        for log, _ in self._open.values():
            log.close()

    def _log(self, host: int) -> tuple[LogFile, Lines]:
        if host not in self._open:
            path = self._folder / f"{self.noun}-{host:04d}.log"
            self._open[host] = LogFile(path, self._tail), Lines()
        return self._open[host]
