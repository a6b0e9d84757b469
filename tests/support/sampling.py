"""Cases of a parametrized test of which CI runs some for every change and all with CI_FULL=1."""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

IS_FULL = bool(os.environ.get("CI_FULL"))


def sampled(cases: Mapping[str, Any] | Iterable[str], always: Collection[str]) -> list[Any]:
    """Parameters by their ids; those that are not in `always` are marked `full`."""
    of_id = cases if isinstance(cases, Mapping) else {one: one for one in cases}
    assert set(always) < set(of_id), "all of `always` are cases, and there are others"
    return [
        pytest.param(
            *(values if isinstance(values, tuple) else (values,)),
            id=name,
            marks=() if name in always else pytest.mark.full,
        )
        for name, values in of_id.items()
    ]


def deselect_full(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests marked `full`, unless the environment has CI_FULL."""
    if IS_FULL:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
