"""Finds the host whose work comes out wrong, by moving the same work to other hosts.

A host that corrupts a step leaves another mark on it when it does the work of another host. So a
replay in which the suspect keeps its work is equal, bit for bit, to the one with all hosts in their
places, and a replay in which it is moved differs. Each replay halves the suspects.
"""

from collections.abc import Callable, Sequence

Order = tuple[int, ...]
"""The host that does the work of each process; hosts are numbered by their usual work."""


def usual(hosts: int) -> Order:
    """Returns the order in which each host does its usual work."""
    return tuple(range(hosts))


def all_moved(hosts: int) -> Order:
    """Returns an order in which each host does the work of the next one."""
    return moved(hosts, range(hosts))


def moved(hosts: int, group: Sequence[int]) -> Order:
    """Returns the usual order, in which the hosts of a group have exchanged their work."""
    order = list(range(hosts))
    for place, host in zip(group, [*group[1:], *group[:1]], strict=True):
        order[place] = host
    return tuple(order)


def find_host(hosts: int, is_usual: Callable[[Order], bool]) -> tuple[int, ...]:
    """Returns the host that corrupts a step; the two of a world of two hosts; or none.

    `is_usual` replays the step in an order, and returns whether the result is that of the usual
    order. It is called at most log2(hosts) times, rounded up, and once more to confirm the result.
    Returns () when that fails: the corruption does not repeat, or several hosts cause it.
    """
    suspects, cleared = list(range(hosts)), list[int]()
    while len(suspects) > 1:
        if len(suspects) == 2 and not cleared:
            return tuple(suspects)  # exchanging them moves both
        middle = len(suspects) // 2
        staying, moving = suspects[:middle], suspects[middle:]
        group = moving if len(moving) > 1 else [*moving, cleared[0]]
        if is_usual(moved(hosts, group)):
            suspects, cleared = staying, [*cleared, *moving]
        else:
            suspects, cleared = moving, [*cleared, *staying]
    (host,) = suspects
    others = [one for one in range(hosts) if one != host]
    return (host,) if len(others) > 1 and is_usual(moved(hosts, others)) else ()
