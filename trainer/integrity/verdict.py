"""Which hosts compute wrong, by what all of them have computed from the same inputs. Pure."""

from collections import Counter
from typing import NamedTuple

import numpy as np


class Verdict(NamedTuple):
    """What two computations of the same on all hosts show."""

    wrong: tuple[int, ...]
    """Hosts that compute wrong; none when that cannot be decided."""
    suspects: tuple[int, ...]
    """Hosts among which at least one computes wrong; `wrong` when that is decided."""
    columns: tuple[int, ...]
    """The values in which hosts differ."""


def judge(first: np.ndarray, second: np.ndarray) -> Verdict:
    """Returns the verdict on values that differ, (hosts, values), of two computations.

    A host that does not repeat its own values is wrong. Any other is wrong if more than half of all
    hosts have repeated other values, all the same. Of two hosts that differ, each in the same way
    twice, neither can be named: a third one has to compute.
    """
    hosts = range(len(first))
    unsteady = [host for host in hosts if (first[host] != second[host]).any()]
    steady = {host: first[host].tobytes() for host in hosts if host not in unsteady}
    wrong = unsteady
    if steady:
        common, count = Counter(steady.values()).most_common(1)[0]
        if 2 * count > len(first):
            wrong = [host for host in hosts if steady.get(host) != common]
    differs = (first != first[0]).any(axis=0) | (first != second).any(axis=0)
    columns = tuple(int(column) for column in np.flatnonzero(differs))
    return Verdict(tuple(wrong), tuple(wrong or hosts), columns)
