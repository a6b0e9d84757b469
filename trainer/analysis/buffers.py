"""The memory of a step as soon as the compiler has assigned its buffers.

XLA optimizes a step and assigns its buffers within seconds; generating code takes ten times as
long, and no buffer changes any more. XLA can write a report on the buffers to a folder.
"""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

REPORT = "*after_optimizations-memory-usage-report.txt"
ASSIGNED = "*after_optimizations_after_buffer_assignment.txt"
"""A file that is written after the report is complete."""
TOTAL = re.compile(r"^Memory Space: default .*\nTotal bytes: (\d+)", re.MULTILINE)
POLL_INTERVAL_S = 0.1


@contextmanager
def watching(on_assigned: Callable[[int], None]) -> Iterator[dict[str, str]]:
    """Yields compiler options under which the compiler reports the buffers of one program.

    Calls `on_assigned` in a thread with their bytes in HBM: arguments, and temporaries at addresses
    of their own, which the peak usage does not exceed.
    """
    done = threading.Event()
    with TemporaryDirectory(prefix="slipway-buffers-") as name:
        watch = threading.Thread(target=_watch, args=(Path(name), on_assigned, done))
        watch.start()
        try:
            yield {"xla_dump_to": name}
        finally:
            done.set()
            watch.join()


def _watch(folder: Path, on_assigned: Callable[[int], None], done: threading.Event) -> None:
    while not done.wait(POLL_INTERVAL_S):
        if any(folder.glob(ASSIGNED)):
            if size := assigned_bytes(folder):
                on_assigned(size)
            return


def assigned_bytes(folder: Path) -> int | None:
    """Returns the bytes of the buffers in HBM; None without a report that is understood."""
    for path in folder.glob(REPORT):
        if total := TOTAL.search(path.read_text(encoding="utf-8", errors="replace")):
            return int(total[1])
    return None
