"""The points of a sweep: products and draws, each with a name of its own."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.sweep.points import Grid, PointsError, labels
from trainer.contract.config.sweep import Axis, Draw
from trainer.contract.config.yaml import dump_inline

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RATE, LAYERS = "optimizer.learning_rate", "model.layers"
RATES = Draw("log", 1e-4, 1e-2)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
AXES = st.dictionaries(
    st.lists(st.text("abc_1", min_size=1, max_size=3), min_size=1, max_size=3).map(".".join),
    st.lists(VALUES | st.lists(VALUES, max_size=2), min_size=1, max_size=4, unique_by=dump_inline),
    min_size=1,
    max_size=3,
)


def names(axes: dict[str, Axis], **more: Any) -> list[str]:
    return [point.name for point in Grid(axes, **more).points("mysweep")]


def test_lists_are_multiplied_and_the_last_key_changes_fastest() -> None:
    assert names({RATE: (1e-3, 3e-3), LAYERS: (4, 8)}) == [
        "mysweep-learning_rate_0.001-layers_4",
        "mysweep-learning_rate_0.001-layers_8",
        "mysweep-learning_rate_0.003-layers_4",
        "mysweep-learning_rate_0.003-layers_8",
    ]


def test_overrides_set_the_values_and_the_name_of_the_run() -> None:
    point = Grid({RATE: (1e-3,), "mesh": ({"fsdp": 2},)}).points("mysweep")[0]
    assert point.overrides == [
        "optimizer.learning_rate=0.001", "mesh={fsdp: 2}", f"name={point.name}"
    ]  # fmt: skip


def test_each_combination_of_listed_values_gets_the_same_draws() -> None:
    points = Grid({LAYERS: (4, 8), RATE: RATES}, samples=3).points("mysweep")
    of_layers = {n: [p.values[RATE] for p in points if p.values[LAYERS] == n] for n in (4, 8)}
    assert of_layers[4] == of_layers[8] and len(set(of_layers[4])) == 3


def test_draws_are_in_their_range_and_depend_on_the_seed_only() -> None:
    drawn = [[p.values[RATE] for p in Grid({RATE: RATES}, 50, seed).points("s")] for seed in (0, 1)]
    again = [p.values[RATE] for p in Grid({RATE: RATES}, 50, 0).points("s")]
    assert drawn[0] == again and drawn[0] != drawn[1]
    assert all(1e-4 <= rate <= 1e-2 for rate in drawn[0])
    assert sum(rate < 1e-3 for rate in drawn[0]) == pytest.approx(25, abs=10)


def test_more_samples_only_add_points() -> None:
    few, many = (set(names({RATE: RATES}, samples=count)) for count in (4, 8))
    assert few < many


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["optimizer.learning_rate", "model.layers"], ["learning_rate", "layers"]),
        (["checkpoint.every_steps", "eval.every_steps"],
         ["checkpoint.every_steps", "eval.every_steps"]),
        (["steps", "profile.steps"], ["steps", "profile.steps"]),
    ],
)  # fmt: skip
def test_names_have_the_shortest_end_of_a_key_that_is_unique(
    keys: list[str], expected: list[str]
) -> None:
    assert list(labels(keys).values()) == expected


@given(AXES)
def test_distinct_points_have_distinct_valid_names(axes: dict[str, list[Any]]) -> None:
    found = names({key: tuple(values) for key, values in axes.items()})
    assert len(set(found)) == len(found)
    assert all(NAME.fullmatch(name) for name in found)


@pytest.mark.parametrize(
    ("axes", "samples", "message"),
    [
        ({}, None, "an empty sweep"),
        ({LAYERS: (4, 8, 4)}, None, "model.layers: 4 is listed 2 times"),
        ({RATE: (1e-3, 0.001)}, None, "optimizer.learning_rate: 0.001 is listed 2 times"),
        ({RATE: RATES}, None, "--samples: missing"),
        ({LAYERS: (4, 8)}, 3, "--samples: no key has a range"),
        ({LAYERS: (4, 8), RATE: RATES}, 10**9, "2,000,000,000 points, but a sweep has at most"),
        ({RATE: Draw("uniform", 1.0, 1.01)}, 9, "the ranges have only 2 different values"),
    ],
)
def test_axes_without_points_are_explained(
    axes: dict[str, Axis], samples: int | None, message: str
) -> None:
    with pytest.raises(PointsError, match=re.escape(message)):
        Grid(axes, samples).points("mysweep")
