"""Python's garbage collector runs at the same steps on all processes, and at no other moment."""

import gc
from collections.abc import Iterator

import pytest

from trainer.callbacks import CollectionCallback

EVERY = CollectionCallback.EVERY_STEPS


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Generation of each collection that has begun."""
    found: list[int] = []

    def record(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            found.append(about["generation"])

    gc.callbacks.append(record)
    yield found
    gc.callbacks.remove(record)


def test_it_collects_every_fifty_steps_and_never_between(collections: list[int]) -> None:
    with CollectionCallback() as collection:
        collections.clear()
        for step in range(1, 2 * EVERY + 1):
            cycles: list[list[object]] = [[] for _ in range(1000)]
            for cycle in cycles:
                cycle.append(cycle)
            collection.before_step(step)
            assert len(collections) == step // EVERY


def test_afterwards_python_collects_by_itself_again() -> None:
    with pytest.raises(ArithmeticError), CollectionCallback():
        raise ArithmeticError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
