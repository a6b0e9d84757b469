"""The lease on a folder of checkpoints: only the newest attempt of one run may write.

On a shared folder, a newer attempt renames the unfinished writes of older attempts, so that their
commit, also a rename, finds nothing. On an object store, the holder writes its lease again right
before a commit, on the condition that the lease is unchanged.

References:
    Fencing tokens, such as an attempt's number: M. Kleppmann, "How to do distributed locking",
    https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from trainer.checkpoint import conditional
from trainer.checkpoint.errors import OtherRunError, StaleError
from trainer.contract.storage import durable_files
from trainer.contract.storage.paths import AnyPath, is_url
from trainer.contract.storage.retries import retried

LEASE = "lease.json"
NO_GENERATION = b""
"""The generation of a file in a file system, which has none."""


@dataclass(frozen=True)
class Lease:
    """One attempt's right to commit, as stored in lease.json."""

    run_id: str
    attempt: int
    id: str

    @classmethod
    def take(
        cls, folder: AnyPath, run_id: str, attempt: int, warn: Callable[[str], None]
    ) -> "Lease":
        """Writes and returns this attempt's lease. Only process 0 calls it, at the start.

        A lease that cannot be parsed counts as no lease: `warn` receives a line about it. Raises
        OtherRunError when another run holds the folder, StaleError when a newer attempt does.
        """
        lease = cls(run_id, attempt, secrets.token_hex(8))
        while True:
            found = _find(folder)
            if found.problem:
                warn(f"{folder / LEASE} {found.problem}: replacing it with a new lease")
            if found.holder and found.holder.run_id != run_id:
                raise OtherRunError(
                    f"{folder} holds the checkpoints of another run. Choose another name "
                    "(name=...), or resume that run"
                )
            if found.holder and found.holder.attempt > attempt:
                newer = found.holder.attempt
                raise StaleError(f"attempt {newer} has taken over from attempt {attempt}")
            if lease._write(folder, found.generation):
                return lease

    @property
    def label(self) -> str:
        """The prefix of the names of this attempt's files, unique to the attempt."""
        return f"{self.attempt}-{self.id}"

    def is_before(self, label: str) -> bool:
        """Returns whether a file whose name begins with `label` belongs to a newer attempt."""
        attempt = label.partition("-")[0]
        return attempt.isdecimal() and int(attempt) > self.attempt

    def check(self, folder: AnyPath) -> None:
        """Raises StaleError unless this attempt still holds the lease."""
        self._check(_find(folder))

    def renew(self, folder: AnyPath) -> None:
        """Checks the lease and, on an object store, writes it again.

        Raises StaleError unless this attempt still holds the lease.
        """
        if not is_url(folder):
            self.check(folder)
            return
        found = _find(folder)
        self._check(found)
        if not self._write(folder, found.generation):
            raise StaleError(f"another attempt has taken over from attempt {self.attempt}")

    def is_taken_over(self, folder: AnyPath) -> bool:
        """Returns whether another attempt holds the folder; False when no valid lease exists."""
        return _find(folder).holder not in (None, self)

    def _check(self, found: "_Found") -> None:
        if found.holder is None:
            problem = found.problem or "is missing"
            raise StaleError(
                f"{LEASE} {problem}: attempt {self.attempt} no longer holds the folder"
            )
        if found.holder != self:
            newer = found.holder.attempt
            raise StaleError(f"attempt {newer} has taken over from attempt {self.attempt}")

    def _write(self, folder: AnyPath, generation: bytes) -> bool:
        """Writes the lease. Returns False when the object has another generation by now."""
        text = json.dumps(asdict(self))
        if is_url(folder):
            write = partial(conditional.write, folder / LEASE, text, generation)
        else:
            write = partial(durable_files.replace, Path(folder) / LEASE, text, self.label)
        return retried(f"writing {folder / LEASE}", write) is not False


class _Found(NamedTuple):
    """The content of lease.json."""

    holder: Lease | None
    problem: str
    """Why lease.json has no valid holder; "" when it has one or does not exist."""
    generation: bytes


def _find(folder: AnyPath) -> _Found:
    text, generation = retried(f"reading {folder / LEASE}", lambda: _read(folder))
    if text is None:
        return _Found(None, "", generation)
    try:
        return _Found(Lease(**json.loads(text)), "", generation)
    except (ValueError, TypeError):
        problem = "is empty" if not text.strip() else "cannot be parsed"
        return _Found(None, problem, generation)


def _read(folder: AnyPath) -> conditional.Seen:
    if is_url(folder):
        return conditional.read(folder / LEASE)
    try:
        text = (Path(folder) / LEASE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = None
    return conditional.Seen(text, NO_GENERATION)
