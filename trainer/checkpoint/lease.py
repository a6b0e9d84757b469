"""Who may write into a folder of checkpoints: one run, and of it the newest attempt only."""

import json
import secrets
from dataclasses import asdict, dataclass

from trainer.checkpoint.errors import OtherRunError, StaleError
from trainer.spec.checkpoints import AnyPath, is_url

LEASE = "lease.json"


@dataclass(frozen=True)
class Lease:
    """One attempt's right to commit, as it stands in lease.json."""

    run_id: str
    attempt: int
    id: str

    @classmethod
    def take(cls, folder: AnyPath, run_id: str, attempt: int) -> "Lease":
        """Write this attempt's lease. Only process 0 does it, at the start.

        Raises OtherRunError where the folder is another run's, StaleError where a newer attempt has
        been here.
        """
        holder = _read(folder)
        if holder and holder.run_id != run_id:
            raise OtherRunError(
                f"{folder} holds the checkpoints of another run. Give this one another name "
                "(name=...), or resume that run"
            )
        if holder and holder.attempt > attempt:
            raise StaleError(f"attempt {holder.attempt} has taken over from attempt {attempt}")
        lease = cls(run_id, attempt, secrets.token_hex(8))
        text = json.dumps(asdict(lease))
        if is_url(folder):
            (folder / LEASE).write_text(text, encoding="utf-8")
            return lease
        temporary = folder / f".{LEASE}.{lease.id}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(folder / LEASE)
        return lease

    def check(self, folder: AnyPath) -> None:
        """Raise StaleError unless this attempt is still the one that may write."""
        holder = _read(folder)
        if holder != self:
            who = f"attempt {holder.attempt}" if holder else "somebody who deleted the lease"
            raise StaleError(f"{who} has taken over from attempt {self.attempt}")


def _read(folder: AnyPath) -> Lease | None:
    try:
        return Lease(**json.loads((folder / LEASE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise OtherRunError(f"{folder / LEASE} cannot be read: {error}") from None
