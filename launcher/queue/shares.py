"""How the runs of a queue share the hosts of its cluster. Pure.

Every run gets the smallest number of hosts that it fits on. The rest goes to the highest priority
first, then to the earliest entry. So the shares follow from the runs alone, and not from their
history.
"""

from collections.abc import Mapping, Sequence

from launcher.queue.entries import Entry

Shares = Mapping[Entry, int]
"""Number of hosts of each run."""


def shares_of(runs: Sequence[Entry]) -> Shares | None:
    """Returns the hosts of runs that are active together; None when they do not fit together.

    A started run that is not elastic keeps what it has.
    """
    if len(runs) > 1 and not all(run.sizes for run in runs):
        return None
    total = hosts_of_cluster(runs)
    shares = {run: _sizes(run, total)[0] for run in runs}
    rest = total - sum(shares.values())
    if rest < 0:
        return None
    for run in sorted(runs, key=lambda run: run.rank):
        largest = max(size for size in _sizes(run, total) if size <= shares[run] + rest)
        rest -= largest - shares[run]
        shares[run] = largest
    return shares


def shares_with(started: Sequence[Entry], newcomer: Entry) -> Shares | None:
    """Returns the hosts of all runs once `newcomer` has started; None when it has to wait.

    No run gives up hosts for one with a lower priority.
    """
    shares = shares_of([*started, newcomer])
    if shares is None:
        return None
    higher = [run for run in started if run.priority > newcomer.priority]
    return None if any(shares[run] < hosts_given(run) for run in higher) else shares


def hosts_given(run: Entry) -> int:
    """Returns the number of hosts that a started run may use; 1 when it has the whole cluster."""
    return run.hosts or hosts_of_cluster([run])


def hosts_of_cluster(runs: Sequence[Entry]) -> int:
    """Returns the number of hosts of the runs' cluster; 1 when it is not divided."""
    return max((run.sizes[-1] for run in runs if run.sizes), default=1)


def _sizes(run: Entry, total: int) -> Sequence[int]:
    """Returns the numbers of hosts that a run may get."""
    if run.is_started and not run.is_elastic:
        return [run.hosts or total]
    return run.sizes or [total]
