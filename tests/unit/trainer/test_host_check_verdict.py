"""Which hosts compute wrong, by two computations of the same on all hosts."""

from itertools import product

import numpy as np
import pytest

from trainer.integrity.verdict import Verdict, judge

RIGHT, WRONG, OTHER = (1, 1, 7), (1, 1, 8), (1, 1, 9)


def judged(first: list[tuple[int, ...]], second: list[tuple[int, ...]] | None = None) -> Verdict:
    return judge(np.array(first, np.uint32), np.array(second or first, np.uint32))


@pytest.mark.parametrize("host", range(4))
def test_one_of_several_that_differs_twice_is_wrong(host: int) -> None:
    values = [WRONG if one == host else RIGHT for one in range(4)]
    assert judged(values) == Verdict((host,), (host,), (2,))


@pytest.mark.parametrize(
    ("first", "second"), [one for one in product((0, 1), (0, 1, 2)) if one[0] != one[1]]
)
def test_a_host_that_does_not_repeat_its_own_values_is_wrong(first: int, second: int) -> None:
    """Even of two hosts. Here host 1 computes another value each time, or once."""
    values = (RIGHT, WRONG, OTHER)
    verdict = judged([RIGHT, values[first]], [RIGHT, values[second]])
    assert verdict.wrong == (1,)


def test_of_two_hosts_that_differ_twice_neither_is_named() -> None:
    assert judged([RIGHT, WRONG]) == Verdict((), (0, 1), (2,))


def test_no_host_is_named_without_a_majority() -> None:
    assert judged([RIGHT, RIGHT, WRONG, WRONG]).wrong == ()
    assert judged([RIGHT, WRONG, OTHER]) == Verdict((), (0, 1, 2), (2,))


def test_two_wrong_hosts_of_five_are_both_named() -> None:
    verdict = judged([RIGHT, WRONG, RIGHT, OTHER, RIGHT], [RIGHT, WRONG, RIGHT, RIGHT, RIGHT])
    assert verdict.wrong == (1, 3)


def test_hosts_that_repeat_the_common_values_are_never_named() -> None:
    for values in product((RIGHT, WRONG, OTHER), repeat=2):
        verdict = judged([RIGHT, RIGHT, *values])
        assert not {0, 1} & set(verdict.wrong)
