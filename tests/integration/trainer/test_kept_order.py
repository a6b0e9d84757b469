"""The order of examples without those that a run has excluded, against plain lists."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sampling import IS_FULL
from trainer.contract.storage.corpus import DataError
from trainer.data import pipeline
from trainer.data.kept_order import KeptOrder

SIZE, EPOCHS = 23, 6


def without(order: list[int], positions: range) -> list[int]:
    """The order from the first of the positions on loses their examples in every epoch."""
    bad = {order[position] for position in positions}
    later = [number for number in order[positions.start :] if number not in bad]
    return order[: positions.start] + later


@settings(max_examples=60 if IS_FULL else 20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(1, 5)), max_size=4), st.integers(0, 2**31)
)
def test_excluded_examples_never_come_again(parts: list[tuple[int, int]], seed: int) -> None:
    whole: Any = pipeline.example_order(SIZE, seed)
    wanted = [int(whole[item]) for item in range(SIZE * EPOCHS)]
    excluded = [range(first, first + count) for first, count in parts]
    for positions in excluded:
        wanted = without(wanted, positions)
    order: Any = KeptOrder(whole, SIZE, excluded)
    count = min(len(wanted), 90)
    assert [int(order[item]) for item in range(count)] == wanted[:count]
    assert int(order[count - 1]) == wanted[count - 1]  # reached directly, in any order


def test_epochs_are_shorter_by_what_is_excluded() -> None:
    order = KeptOrder(pipeline.example_order(10, 0), 10, [range(4, 7)])
    assert [order.epoch(item) for item in (0, 6, 7, 13, 14)] == [1, 1, 2, 2, 3]


def test_source_without_any_example_left_is_an_error() -> None:
    with pytest.raises(DataError, match="all 4 examples"):
        KeptOrder(pipeline.example_order(4, 0), 4, [range(4)])
