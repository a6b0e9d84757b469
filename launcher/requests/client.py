"""The command's side of a request to a live run."""

import shutil
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from launcher.core.errors import HostError, UsageError
from launcher.core.files import lock
from launcher.core.messages import MessageReader, encode
from launcher.requests.files import ANSWERS, POLL_INTERVAL_S, REQUEST, folder_of
from launcher.requests.messages import ANSWER_TYPES, Answer, Done, Failed, Request

ANSWER_TIMEOUT_S = 20.0
"""Seconds without any answer after which a driver counts as stuck; it sends one every 2 s."""


class NotLiveError(UsageError):
    """No process drives the run, so nothing answers."""


def ask(
    run_dir: Path,
    request: Request,
    is_alive: Callable[[], bool],
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Generator[Answer]:
    """Sends a request to the driver of a run, and yields its answers, the last one excluded.

    Closing the generator withdraws the request. Raises NotLiveError when the run is not or no
    longer alive, HostError when the driver does not answer or cannot carry out the request.
    """
    with _request(run_dir, request) as folder:
        if not is_alive():
            raise NotLiveError(f"{run_dir.name} is not running, so it has no processes")
        for answer in _answers(folder / ANSWERS, run_dir.name, is_alive, timeout_s):
            match answer:
                case Done():
                    return
                case Failed(reason=reason):
                    raise HostError(f"{run_dir.name}: {reason}")
                case _:
                    yield answer


@contextmanager
def _request(run_dir: Path, request: Request) -> Iterator[Path]:
    """Yields the folder of a request, which gets its name once it is complete and locked."""
    folder = folder_of(run_dir) / uuid.uuid4().hex
    making = folder.with_name(f".{folder.name}")
    try:
        making.mkdir(mode=0o700, parents=True)
        with (making / REQUEST).open("wb") as file:
            lock(file)
            file.write(encode(request))
            file.flush()
            making.rename(folder)
            yield folder
    except PermissionError as error:
        raise UsageError(f"{error.filename} cannot be written: another user's run?") from None
    finally:
        for left in (making, folder):
            shutil.rmtree(left, ignore_errors=True)


def _answers(
    path: Path, run: str, is_alive: Callable[[], bool], timeout_s: float
) -> Iterator[Answer]:
    reader = MessageReader(ANSWER_TYPES, "the run's driver", HostError)
    file: IO[bytes] | None = None
    rest, heard_at = b"", time.monotonic()
    try:
        while True:
            was_alive = is_alive()  # before the read, so that no last answer is missed
            if file is None:
                with suppress(FileNotFoundError):
                    file = path.open("rb")
            if chunk := file.read() if file else b"":
                heard_at = time.monotonic()
                *lines, rest = (rest + chunk).split(b"\n")
                yield from filter(None, map(reader.parse, lines))
            elif not was_alive:
                raise NotLiveError(f"{run} has ended meanwhile")
            elif time.monotonic() - heard_at > timeout_s:
                raise HostError(
                    f"no answer from the process that drives {run} in {timeout_s:.0f} s"
                )
            else:
                time.sleep(POLL_INTERVAL_S)
    finally:
        if file:
            file.close()
