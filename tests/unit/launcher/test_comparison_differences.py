"""In what two runs differ, by what they have recorded."""

from typing import Any

import pytest

from launcher.comparison.differences import Difference, Group, differences
from launcher.runs.run_record import RunRecord
from tests.support.run_records import record_of
from tests.support.worlds import cpu_world
from trainer.contract.planning.plan import BasePlan
from trainer.contract.protocol.events import StartedEvent

JOB = """\
name: first
steps: 40
eval: null
optimizer:
  learning_rate: 0.001
  param_groups: []
data:
  mixture: {a: 1, b: 2}
"""


def changed(job: str, **fields: Any) -> list[tuple[str, Any, Any]]:
    first, second = record_of(job_text=JOB), record_of(job_text=job, **fields)
    return [(one.key, one.first, one.second) for one in found(first, second)]


def found(first: RunRecord, second: RunRecord) -> list[Difference]:
    return [one for known in differences(first, second) for one in known.differences]


def test_name_is_no_difference() -> None:
    assert changed(JOB.replace("first", "second")) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("0.001", "0.003", ("optimizer.learning_rate", 0.001, 0.003)),
        ("eval: null", "eval: {batches: 2}", ("eval", None, {"batches": 2})),
        ("param_groups: []", "param_groups: [x]", ("optimizer.param_groups", [], ["x"])),
        ("b: 2", "b: 3", ("data.mixture.b", 2, 3)),
        (", b: 2", "", ("data.mixture.b", 2, None)),
        ("steps: 40", "steps: 40\nnew: 1", ("new", None, 1)),
    ],
)
def test_each_key_with_another_value_is_a_difference(
    before: str, after: str, expected: tuple[str, Any, Any]
) -> None:
    assert changed(JOB.replace(before, after)) == [expected]


def test_key_that_only_one_version_has_is_none_where_it_is_null() -> None:
    assert changed(JOB + "new: null\n") == []


def test_packages_and_code_are_compared_where_both_runs_have_recorded_them() -> None:
    starts = [
        {1: StartedEvent(time=0.0, versions={"jax": jax, "numpy": "2"}, code=code * 64)}
        for jax, code in (("1", "a"), ("2", "b"))
    ]
    first, second = (record_of(started=started) for started in starts)
    assert found(first, second) == [
        Difference(Group.CODE, "sha256", "a" * 12, "b" * 12),
        Difference(Group.LIBRARIES, "jax", "1", "2"),
    ]
    assert [known.group for known in differences(first, record_of())] == []


def test_damaged_job_is_not_compared() -> None:
    first, second = record_of(job_text=JOB), record_of(job_text="{damaged")
    assert differences(first, second) == []


def test_hosts_of_the_last_attempt_are_compared() -> None:
    small, large = (BasePlan(world=cpu_world(hosts, 2)) for hosts in (1, 2))
    resized, fixed = record_of(plans={1: small, 2: large}), record_of(plans={1: small})
    assert found(resized, fixed) == [
        Difference(Group.CLUSTER, "hosts", 2, 1),
        Difference(Group.CLUSTER, "devices", 4, 2),
    ]
    assert found(resized, record_of(plans={1: large})) == []


@pytest.mark.parametrize(
    ("difference", "is_of_rounding"),
    [
        (Difference(Group.JOB, "mesh.tensor", 1, 2), True),
        (Difference(Group.JOB, "log_every", 1, 2), True),
        (Difference(Group.JOB, "checkpoint.keep", 1, 2), True),
        (Difference(Group.JOB, "checkpoint.init_from", None, "x"), False),
        (Difference(Group.JOB, "checkpoint", None, {"keep": 3, "init_from": None}), True),
        (Difference(Group.JOB, "checkpoint", None, {"keep": 3, "init_from": "x"}), False),
        (Difference(Group.JOB, "optimizer.learning_rate", 1, 2), False),
        (Difference(Group.JOB, "logs", 1, 2), False),
        (Difference(Group.CLUSTER, "hosts", 1, 2), True),
        (Difference(Group.PLAN, "mesh", "fsdp 2", "tensor 2"), True),
        (Difference(Group.PLAN, "compute_dtype", "float32", "bfloat16"), False),
        (Difference(Group.LIBRARIES, "jax", "1", "2"), False),
    ],
)
def test_what_changes_the_loss_by_rounding_at_most(
    difference: Difference, is_of_rounding: bool
) -> None:
    assert difference.is_of_rounding is is_of_rounding
