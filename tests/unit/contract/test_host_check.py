"""The plan of a check of hosts, and what it costs."""

import math

import pytest

from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.estimates.host_check import host_check_cost
from trainer.contract.planning.host_check import on_one_host
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve

EVERY = 500


def plan_of(hosts: int, devices: int, **mesh: int) -> Plan:
    job = job_of(data={"global_batch": 64}, mesh=mesh)
    return resolve(job, world_of(hosts, devices), corpus_of(job))


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ({}, {"fsdp": 4}),
        ({"data": 8, "fsdp": 1}, {"fsdp": 4}),
        ({"data": 1, "fsdp": 4, "tensor": 2}, {"fsdp": 2, "tensor": 2}),
        ({"data": 1, "fsdp": 2, "tensor": 4}, {"fsdp": 1, "tensor": 4}),
        ({"data": 1, "fsdp": 2, "context": 2, "tensor": 2}, {"context": 2, "tensor": 2}),
    ],
)
def test_a_host_keeps_axes_inside_and_shards_over_the_rest(mesh, expected) -> None:
    whole = plan_of(2, 4, **mesh)
    host = on_one_host(whole)
    assert {axis: size for axis, size in host.mesh.items() if size > 1 or axis in expected} == (
        expected
    )
    assert (host.world.processes, host.world.devices) == (1, 4)
    assert host.batch.rows_per_device == 1
    assert [one.shape for one in host.parameters] == [one.shape for one in whole.parameters]
    for one in host.parameters:
        parts = math.prod(host.mesh[axis] for axis in one.spec if axis)
        assert one.bytes_per_device == 4 * math.prod(one.shape) // parts


def test_cost_is_the_examples_of_all_hosts_once_per_interval() -> None:
    job, plan = job_of(checkpoint={}, integrity={"replay_every": EVERY}), plan_of(4, 2)
    cost = host_check_cost(job, plan, None)
    assert cost and (cost.every_steps, cost.examples) == (EVERY, 2)
    assert cost.step_time_share == pytest.approx(2 * 4 / 64 / EVERY)
    weights = sum(array.bytes_per_device for array in on_one_host(plan).parameters)
    assert cost.bytes_per_device == 2 * weights


def test_one_host_and_a_job_without_checks_have_no_cost() -> None:
    job = job_of(checkpoint={}, integrity={"replay_every": EVERY})
    assert host_check_cost(job, plan_of(1, 4), None) is None
    assert host_check_cost(job_of(), plan_of(2, 4), None) is None
