"""The procedure of an audit: which replays follow which, and the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.audit.differences import (
    FirstDifference,
    Quantity,
    Steps,
    first_difference,
    first_difference_of_replays,
    is_same_step,
)
from launcher.audit.hosts import Order, all_moved, find_host, usual
from launcher.audit.recorded import Recorded
from launcher.audit.result import AuditKind
from launcher.audit.rounding import Rounding, compare_rounded
from launcher.core.formatting import format_percent, pluralize

SHOWN_ARRAYS = 3


class Replayer(Protocol):
    """Replays steps on the hosts of an audit."""

    @property
    def hosts(self) -> int: ...

    @property
    def can_move(self) -> bool:
        """Whether a host can do the work of another one."""
        ...

    def replay(self, first: int, last: int, order: Order, *, reordered: bool = False) -> Steps:
        """Returns what steps have computed.

        `reordered`: whether the sums of a step are in another order.
        """
        ...


@dataclass(frozen=True)
class Verdict:
    """What an audit has found."""

    kind: AuditKind
    text: str
    difference: FirstDifference | None = None
    suspects: tuple[int, ...] = ()
    rounding: Rounding | None = None

    def fields(self, made_with: str) -> Mapping[str, Any]:
        """Returns its fields in an AuditResult.

        `made_with`: a sentence with the versions that made and replayed the run; "" for the same.
        """
        return {
            "kind": self.kind,
            "text": ". ".join(filter(None, [self.text, made_with])),
            "difference": self.difference,
            "suspects": self.suspects,
            "largest_relative_difference": self.rounding and self.rounding.largest,
            "tolerance": self.rounding and self.rounding.tolerance,
        }


def audit(recorded: Recorded, replays: Replayer, *, is_same_program: bool) -> Verdict:
    """Replays the steps of a run as often as the verdict needs.

    `is_same_program`: whether the replays run the program of the run, so that no bit may differ.
    """
    first, last, hosts = recorded.first, recorded.last, replays.hosts
    order = all_moved(hosts) if replays.can_move else usual(hosts)
    replayed = replays.replay(first, last, order)
    difference = first_difference(recorded, replayed)
    if difference is None:
        return Verdict(AuditKind.EQUAL, _equal(recorded, moved=replays.can_move))
    rounding = None
    if not is_same_program:
        reordered = replays.replay(first, last, order, reordered=True)
        rounding = compare_rounded(recorded, replayed, reordered)
        if rounding.difference is None:
            return Verdict(AuditKind.ROUNDING, _rounded(recorded, rounding), rounding=rounding)
    again = replays.replay(first, last, usual(hosts))
    by_hosts = first_difference_of_replays(again, replayed)
    if by_hosts:
        return _corrupt(replays, again, by_hosts)
    if rounding and rounding.difference:
        text = _different(recorded, rounding, rounding.difference)
        return Verdict(AuditKind.DIFFERENT, text, rounding.difference, rounding=rounding)
    return Verdict(AuditKind.CORRUPT_RECORD, _of_record(recorded, difference), difference)


def _corrupt(replays: Replayer, usual_steps: Steps, difference: FirstDifference) -> Verdict:
    """Returns the verdict on replays that differ from each other."""
    step, hosts = difference.step, replays.hosts

    def is_usual(order: Order) -> bool:
        return is_same_step(usual_steps[step], replays.replay(step, step, order)[step])

    found = find_host(hosts, is_usual) if replays.can_move else tuple(range(hosts))
    where = f"at step {step:,}, in {_named(difference)}"
    if len(found) == 1:
        text = f"host {found[0]} computes wrong {where}: the difference moves with this host"
        return Verdict(AuditKind.CORRUPT_HOST, text, difference, found)
    if len(found) == 2:
        text = (
            f"host {found[0]} or host {found[1]} computes wrong {where}. Exchanging two "
            "hosts moves both: replay on a cluster with a third one"
        )
    else:
        text = f"replays on the same hosts differ {where}, and not in the same way each time"
    return Verdict(AuditKind.CORRUPT_HOSTS, text, difference, found)


def _equal(recorded: Recorded, *, moved: bool) -> str:
    whole = pluralize(len(recorded.checkpoints), "checkpoint")
    how = "each host did the work of another one" if moved else "each host repeated its own work"
    return (
        f"steps {recorded.first:,} to {recorded.last:,} are reproduced bit for bit, {whole} "
        f"included; {how}"
    )


def _of_record(recorded: Recorded, difference: FirstDifference) -> str:
    since = max(
        (step for step in recorded.checkpoints if step < difference.step),
        default=recorded.start_step,
    )
    where = f"at step {difference.step:,}"
    if difference.quantity is Quantity.STATE:
        where = f"between step {since + 1:,} and step {difference.step:,}"
    return (
        f"the run was corrupted {where}: {_named(difference)} differ from two replays that agree. "
        "It did not happen again, so no host can be named"
    )


def _rounded(recorded: Recorded, found: Rounding) -> str:
    largest, limit = (format_percent(value) for value in (found.largest, found.tolerance))
    return (
        f"steps {recorded.first:,} to {recorded.last:,} are reproduced up to rounding: at most "
        f"{largest}, tolerance {limit}"
    )


def _different(recorded: Recorded, found: Rounding, difference: FirstDifference) -> str:
    largest, limit = (format_percent(value) for value in (found.largest, found.tolerance))
    return (
        f"{_named(difference)} of step {difference.step:,} differ by more than rounding explains: "
        f"up to {largest} in steps {recorded.first:,} to {recorded.last:,}, tolerance {limit}. Two "
        "replays agree bit for bit, so no host of theirs is the cause. What has changed since the "
        "run is, or the run was corrupted: an audit with the mesh, code and versions of the run "
        "says which"
    )


def _named(difference: FirstDifference) -> str:
    names = {Quantity.GRAD_NORM: "the norm of the gradient", Quantity.STATE: "the state"}
    name = names.get(difference.quantity, f"the {difference.quantity}")
    arrays, rest = difference.arrays[:SHOWN_ARRAYS], len(difference.arrays) - SHOWN_ARRAYS
    if not arrays:
        return name
    return f"{name} ({', '.join(arrays)}{f' and {rest} more' if rest > 0 else ''})"
