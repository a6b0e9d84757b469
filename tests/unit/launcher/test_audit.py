"""The pure parts of an audit: which host is named, what differs, what rounding explains."""

import math
from collections.abc import Sequence

import pytest

from launcher.audit.audit import audit
from launcher.audit.differences import (
    FirstDifference,
    Quantity,
    Steps,
    first_difference,
    first_difference_of_replays,
)
from launcher.audit.hosts import Order, all_moved, find_host, moved, usual
from launcher.audit.programs import Program, made_with, version_changes, versions_of
from launcher.audit.recorded import Recorded, RecordedStep
from launcher.audit.result import AuditKind
from launcher.audit.rounding import compare_rounded
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.worlds import tiny_job
from trainer.contract.records.checkpoint_metadata import Array
from trainer.contract.records.replay_file import StepDigests

NAME = "params.layers.attention.query.kernel"


def step_of(step: int, loss: float = 2.0, state: tuple[int, ...] = (1, 2)) -> StepDigests:
    return StepDigests(
        step=step, loss=loss, grad_norm=1.0, examples="0000000a", gradients={NAME: (5, 6)},
        state={NAME: state},
    )  # fmt: skip


def steps_of(*steps: StepDigests) -> dict[int, StepDigests]:
    return {one.step: one for one in steps}


def recorded_of(losses: Sequence[float], digest: int = 3) -> Recorded:
    """A run with a checkpoint at its last step, whose state has the digest."""
    last, job = len(losses), tiny_job()
    array = Array(shape=(2,), dtype="float32", digest=digest)
    return Recorded(
        name="run", first=1, last=last, start=None,
        steps={n: RecordedStep(loss, 1.0, "0000000a", 1) for n, loss in enumerate(losses, 1)},
        checkpoint_folder="",
        checkpoints={last: about_of(job, last, arrays={NAME: array})},
        job=job, plans={}, programs=(), corpus_sha256=None,
    )  # fmt: skip


class FaultyHosts:
    """Hosts of which one changes the state of a step, depending on the work that it does."""

    can_move = True

    def __init__(self, hosts: int, faulty: int | None, step: int = 2, *, repeats: bool = True):
        self.hosts, self._faulty, self._step, self._repeats = hosts, faulty, step, repeats
        self.count = 0

    def replay(self, first: int, last: int, order: Order, *, reordered: bool = False) -> Steps:
        self.count += 1
        assert sorted(order) == list(range(self.hosts))
        steps = {n: step_of(n, loss=2.0 + reordered * 1e-6) for n in range(first, last + 1)}
        if self._faulty is not None and self._step in steps:
            place = order.index(self._faulty)
            mark = place if self._repeats else 1000 * self.count
            steps[self._step] = step_of(self._step, state=(1, 100 + mark))
        return steps


@pytest.mark.parametrize("hosts", range(3, 10))
def test_each_faulty_host_is_named_in_log2_replays(hosts: int) -> None:
    for faulty in range(hosts):
        orders: list[Order] = []

        def is_usual(order: Order, faulty: int = faulty, orders: list[Order] = orders) -> bool:
            orders.append(order)
            return order[faulty] == faulty

        assert find_host(hosts, is_usual) == (faulty,)
        assert len(orders) <= math.ceil(math.log2(hosts)) + 1


def test_of_two_hosts_neither_is_named() -> None:
    assert find_host(2, lambda order: False) == (0, 1)


def test_fault_that_does_not_repeat_names_no_host() -> None:
    assert find_host(4, lambda order: False) == ()


def test_orders_move_the_hosts_of_a_group() -> None:
    assert usual(3) == (0, 1, 2)
    assert all_moved(3) == (1, 2, 0)
    assert moved(4, [1, 3]) == (0, 3, 2, 1)


def test_difference_names_the_layer() -> None:
    first, second = steps_of(step_of(1), step_of(2)), steps_of(step_of(1), step_of(2, state=(1, 9)))
    found = first_difference_of_replays(first, second)
    assert found == FirstDifference(2, Quantity.STATE, (f"{NAME}[1]",))
    assert first_difference_of_replays(first, first) is None


def test_loss_is_compared_before_the_state_of_a_checkpoint() -> None:
    replay = steps_of(step_of(1), step_of(2, loss=2.5, state=(7, 7)))
    assert first_difference(recorded_of([2.0, 2.5]), replay) == FirstDifference(
        2, Quantity.STATE, (NAME,)
    )
    assert first_difference(recorded_of([2.0, 2.0]), replay) == FirstDifference(2, Quantity.LOSS)


def test_clean_steps_are_equal_after_one_replay() -> None:
    hosts = FaultyHosts(4, faulty=None)
    verdict = audit(recorded_of([2.0, 2.0]), hosts, is_same_program=True)
    assert (verdict.kind, hosts.count) == (AuditKind.EQUAL, 1)
    assert "each host did the work of another one" in verdict.text


def test_fault_that_repeats_names_step_array_and_host() -> None:
    hosts = FaultyHosts(4, faulty=3)
    verdict = audit(recorded_of([2.0, 2.0], digest=1 + 103), hosts, is_same_program=True)
    assert (verdict.kind, verdict.suspects, hosts.count) == (AuditKind.CORRUPT_HOST, (3,), 5)
    assert verdict.difference == FirstDifference(2, Quantity.STATE, (f"{NAME}[1]",))
    assert "host 3 computes wrong at step 2" in verdict.text


def test_fault_of_the_run_alone_names_its_steps_and_no_host() -> None:
    hosts = FaultyHosts(4, faulty=None)
    verdict = audit(recorded_of([2.0, 2.0], digest=99), hosts, is_same_program=True)
    assert (verdict.kind, verdict.suspects, hosts.count) == (AuditKind.CORRUPT_RECORD, (), 2)
    assert "between step 1 and step 2" in verdict.text


@pytest.mark.parametrize(("hosts", "repeats"), [(2, True), (4, False)])
def test_fault_without_a_single_suspect_names_what_is_known(hosts: int, repeats: bool) -> None:
    faulty = FaultyHosts(hosts, faulty=1, repeats=repeats)
    verdict = audit(recorded_of([2.0, 2.0], digest=99), faulty, is_same_program=True)
    assert verdict.kind is AuditKind.CORRUPT_HOSTS
    assert verdict.suspects == ((0, 1) if repeats else ())


def test_other_mesh_is_compared_up_to_a_measured_tolerance() -> None:
    replay = steps_of(*(step_of(n) for n in (1, 2, 3)))
    reordered = steps_of(*(step_of(n, loss=2.0 + 2e-6 * n) for n in (1, 2, 3)))
    near = compare_rounded(recorded_of([2.0, 2.00001, 2.00002]), replay, reordered)
    assert near.difference is None
    assert near.tolerance == pytest.approx(8 * 3e-6, rel=1e-3)
    far = compare_rounded(recorded_of([2.0, 2.001, 2.0]), replay, reordered)
    assert far.difference == FirstDifference(2, Quantity.LOSS)
    assert far.largest == pytest.approx(5e-4, rel=1e-2)


def test_other_examples_are_never_rounding() -> None:
    replay = steps_of(StepDigests(1, 2.0, 1.0, "0000000b", {}, {}))
    found = compare_rounded(recorded_of([2.0]), replay, replay)
    assert found.difference == FirstDifference(1, Quantity.EXAMPLES)


@pytest.mark.parametrize("is_near", [True, False])
def test_verdict_on_another_mesh_is_rounding_or_different(is_near: bool) -> None:
    recorded = recorded_of([2.0, 2.000001 if is_near else 2.1])
    hosts = FaultyHosts(4, faulty=None)
    verdict = audit(recorded, hosts, is_same_program=False)
    assert verdict.kind is (AuditKind.ROUNDING if is_near else AuditKind.DIFFERENT)
    assert verdict.rounding and hosts.count == (2 if is_near else 3)
    assert verdict.suspects == ()


def test_other_program_that_changes_no_bit_is_equal_after_one_replay() -> None:
    hosts = FaultyHosts(4, faulty=None)
    verdict = audit(recorded_of([2.0, 2.0]), hosts, is_same_program=False)
    assert (verdict.kind, hosts.count) == (AuditKind.EQUAL, 1)


def test_other_program_names_a_host_only_by_replays_of_its_own() -> None:
    hosts = FaultyHosts(4, faulty=1)
    verdict = audit(recorded_of([2.0, 2.1]), hosts, is_same_program=False)
    assert (verdict.kind, verdict.suspects) == (AuditKind.CORRUPT_HOST, (1,))


def test_versions_that_made_and_replayed_a_run_are_named() -> None:
    one, other = Program("a", {"jax": "1", "flax": "3"}), Program("a", {"jax": "2", "flax": "3"})
    before = versions_of([one, other])
    assert before == {"jax": "1 and 2", "flax": "3"}
    assert list(version_changes(before, {"jax": "2", "flax": "3"})) == ["jax: 1 and 2 -> 2"]
    assert made_with(one.versions, {"jax": "2", "flax": "3", "libtpu": "4"}) == (
        "The run was made with jax 1, libtpu none, and replayed with jax 2, libtpu 4"
    )
    assert made_with(one.versions, one.versions) == ""
    assert list(version_changes({}, {"jax": "2"})) == ["jax: unknown -> 2"]
