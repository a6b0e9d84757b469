"""The order of steps that depend on each other: pure functions."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

Needs = Mapping[str, Sequence[str]]
"""The names of the steps that each step waits for."""


def circles(needs: Needs) -> list[list[str]]:
    """Returns circles of steps, each as the names from a step back to itself; [] for none.

    Each waits for the next. A step is in one of them at most.
    """
    left, found = {name: list(before) for name, before in needs.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
            return found
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            found.append(circle)
            left = {
                name: [one for one in before if one not in circle]
                for name, before in left.items()
                if name not in circle
            }


def in_order(needs: Needs) -> list[str]:
    """Returns all steps, each after those that it waits for, else in the given order.

    There must be no circle.
    """
    done: dict[str, None] = {}
    while len(done) < len(needs):
        name = next(n for n in needs if n not in done and set(needs[n]) <= done.keys())
        done[name] = None
    return list(done)
