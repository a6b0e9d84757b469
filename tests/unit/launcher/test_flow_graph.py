"""The order of the steps of a flow, and steps that wait for each other."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.flow.graph import Needs, circles, in_order

NAMES = "abcdefg"
ANY_NEEDS = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True), min_size=1
).map(lambda needs: {name: [b for b in before if b in needs] for name, before in needs.items()})


@st.composite
def chains(draw: st.DrawFn) -> Needs:
    """Needs without a circle: each step waits for earlier ones; listed in any order."""
    names = list(NAMES[: draw(st.integers(1, len(NAMES)))])
    needs = {
        name: draw(
            st.lists(st.sampled_from(names[:number]), unique=True) if number else st.just([])
        )
        for number, name in enumerate(names)
    }
    order = draw(st.permutations(names))
    return {name: sorted(needs[name]) for name in order}


@given(chains())
def test_each_step_comes_after_those_that_it_waits_for(needs: Needs) -> None:
    order = in_order(needs)
    assert sorted(order) == sorted(needs)
    for name, before in needs.items():
        assert all(order.index(one) < order.index(name) for one in before)


def test_steps_without_needs_keep_their_order() -> None:
    names = list(NAMES)
    random.Random(0).shuffle(names)
    assert in_order(dict.fromkeys(names, ())) == names


@given(chains())
def test_a_chain_has_no_circle(needs: Needs) -> None:
    assert circles(needs) == []


@given(ANY_NEEDS)
def test_in_a_circle_each_step_waits_for_the_next(needs: Needs) -> None:
    for circle in circles(needs):
        assert circle[0] == circle[-1]
        assert all(second in needs[first] for first, second in pairwise(circle))


@given(ANY_NEEDS)
def test_the_other_steps_can_start_without_those_in_circles(needs: Needs) -> None:
    stuck = {name for circle in circles(needs) for name in circle}
    rest = {
        name: [one for one in before if one not in stuck]
        for name, before in needs.items()
        if name not in stuck
    }
    assert sorted(in_order(rest)) == sorted(rest)


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        ({"a": ["a"]}, [["a", "a"]]),
        ({"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]}, [set("ab"), set("cd")]),
    ],
)
def test_all_circles_are_found(needs: Needs, found: list[object]) -> None:
    assert sorted(map(sorted, map(set, circles(needs)))) == sorted(map(sorted, map(set, found)))  # type: ignore[arg-type]
