"""The parts of the wall time in `launch why`: they add up, and each second is in the right one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.events import AttemptEndedEvent
from launcher.diagnosis.advice import explain
from launcher.diagnosis.parts import PartKind, time_parts
from launcher.runs.run_record import RunRecord, Slowdown
from tests.support.any_events import ENDS, STATES, any_event
from tests.support.llama_jobs import CORPUS, found, job_of, world_of
from tests.support.run_builders import RunEvents
from tests.support.run_folders import event_of
from tests.support.run_records import record_of
from tests.support.worlds import tiny_job
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.events import CompiledEvent

OF_LAUNCHER = ["command_started", "state", "attempt_ended"]


def seconds(record: RunRecord) -> dict[PartKind, float]:
    return {part.kind: part.seconds for part in time_parts(record)}


def lines(*numbers: int, attempt: int = 1, **values: float) -> list[dict[str, Any]]:
    return [{"step": n, "attempt": attempt, "loss": 1.0, **values} for n in numbers]


def changes(record: RunRecord, kind: PartKind) -> list[str]:
    (part,) = [part for part in time_parts(record) if part.kind is kind]
    return explain(part, record).changes


def crashed() -> RunEvents:
    """Ten steps, a crash, back-off, and a second attempt that repeats five of them."""
    run = RunEvents().training().steps(1, 10).ended("crash")
    return run.state("backing_off").after(4).next_attempt().training().steps(6, 12).finished()


slowdowns = st.builds(
    Slowdown,
    process=st.integers(0, 3),
    attempt=st.integers(1, 3),
    after_step=st.integers(0, 20),
    factor=st.none() | st.floats(1, 100),
    text=st.just("slow"),
)
metrics = st.builds(
    lambda step, attempt, step_s: lines(step, attempt=attempt, step_time_s=step_s)[0],
    st.integers(1, 20), st.integers(1, 3), st.none() | st.floats(0, 100),
)  # fmt: skip


@given(
    st.lists(any_event([*STATES, *ENDS], [*OF_LAUNCHER, "phase", "step"])),
    st.lists(metrics, unique_by=lambda line: line["step"]),
    st.lists(slowdowns, max_size=3),
)
def test_parts_of_any_run_add_up_to_the_wall_time(
    wires: list[dict[str, Any]], curve: list[dict[str, Any]], slow: list[Slowdown]
) -> None:
    run = RunEvents()
    run.lines = wires
    job, world = job_of(64), world_of("v5p-64")
    plans = dict.fromkeys((1, 2, 3), resolve(job, world, CORPUS))
    curve = sorted(curve, key=lambda line: line["step"])
    record = record_of(run, job=job, plans=plans, metrics=curve, slowdowns=slow)
    parts = time_parts(record)
    assert sum(part.seconds for part in parts) == pytest.approx(record.goodput.wall_s)
    assert all(sum(part.of_parts.values()) == pytest.approx(part.seconds) for part in parts)
    assert all(part.seconds > 0 and explain(part, record).title for part in parts)


def test_start_of_a_later_attempt_is_part_of_the_restarts() -> None:
    found = seconds(record_of(crashed()))
    first = seconds(record_of(RunEvents().training().steps(1, 10).finished()))
    assert (found[PartKind.START], found[PartKind.COMPILATION]) == (first[PartKind.START], 8)
    # 5 repeated steps, 4 s of back-off, and the start and compilation of the second attempt
    assert found[PartKind.RESTARTS] == pytest.approx(5 + 4 + first[PartKind.START] + 8)


def test_largest_loss_is_first_and_the_steps_come_last() -> None:
    run = RunEvents().training().phase("save", 3).phase("evaluate", 9).steps(1, 5).finished()
    kinds = [part.kind for part in time_parts(record_of(run))]
    assert kinds[-1] is PartKind.STEPS
    assert kinds.index(PartKind.EVALUATION) < kinds.index(PartKind.CHECKPOINTS)


def of_a_tpu(step_s: float) -> tuple[RunRecord, float, float]:
    """Ten steps on a real TPU; and the bounds of a step without and over its links."""
    job, world = job_of(64), world_of("v5p-64")
    best = found(job, world)
    record = record_of(
        RunEvents().training().steps(1, 10, step_s).finished(),
        job=job,
        plans={1: resolve(job, world, CORPUS)},
        metrics=lines(*range(1, 11), step_time_s=step_s),
    )
    return record, max(best.compute_s, best.hbm_s), best.link_s


def test_steps_are_divided_by_the_bounds_of_the_plan() -> None:
    _, bound_s, links_s = of_a_tpu(1.0)
    record, _, _ = of_a_tpu(bound_s + links_s + 1.0)
    parts = seconds(record)
    assert parts[PartKind.BOUND] == pytest.approx(10 * bound_s)
    assert parts[PartKind.COLLECTIVES] == pytest.approx(10 * links_s)
    assert parts[PartKind.ABOVE_BOUND] == pytest.approx(10.0)


def test_steps_at_the_bound_have_no_exposed_collectives() -> None:
    _, bound_s, _ = of_a_tpu(1.0)
    record, _, _ = of_a_tpu(bound_s)
    parts = seconds(record)
    assert parts.get(PartKind.COLLECTIVES, 0.0) == pytest.approx(0.0, abs=1e-6)
    assert parts.get(PartKind.ABOVE_BOUND, 0.0) == pytest.approx(0.0, abs=1e-6)


def test_line_of_log_every_stands_for_all_its_steps() -> None:
    record, bound_s, _ = of_a_tpu(1000.0)
    thin = record_of(
        job=record.job, plans=record.plans, metrics=lines(1, 5, 10, step_time_s=1000.0)
    )
    object.__setattr__(thin, "goodput", record.goodput)
    assert seconds(thin)[PartKind.BOUND] == pytest.approx(10 * bound_s)


def slowed(**fields: Any) -> RunRecord:
    """Ten steps of 1 s, then ten of 3 s after host 1 was noticed to be slow."""
    curve = lines(*range(1, 11), step_time_s=1.0) + lines(*range(11, 21), step_time_s=3.0)
    run = RunEvents().training().steps(1, 10, 1.0).steps(11, 20, 3.0).finished()
    slow = Slowdown(1, 1, after_step=10, factor=3.0, text="host-0001 is slow")
    return record_of(run, **{"metrics": curve, "slowdowns": [slow], **fields})


def test_straggler_costs_the_time_above_the_usual_step() -> None:
    parts = seconds(slowed())
    assert parts[PartKind.STRAGGLERS] == pytest.approx(20.0)
    assert parts[PartKind.STEPS] == pytest.approx(20.0)


def test_straggler_from_the_first_step_costs_by_its_factor() -> None:
    slow = Slowdown(1, 1, after_step=0, factor=4.0, text="")
    curve = lines(*range(1, 21), step_time_s=2.0)
    parts = seconds(slowed(metrics=curve, slowdowns=[slow]))
    assert parts[PartKind.STRAGGLERS] == pytest.approx(20 * 1.5)


def test_straggler_of_another_attempt_costs_nothing_here() -> None:
    slow = Slowdown(1, 2, after_step=10, factor=3.0, text="")
    assert PartKind.STRAGGLERS not in seconds(slowed(slowdowns=[slow]))


def test_wait_for_data_is_no_straggler() -> None:
    curve = lines(*range(1, 11), step_time_s=1.0)
    curve += lines(*range(11, 21), step_time_s=3.0, data_wait_s=2.0)
    assert PartKind.STRAGGLERS not in seconds(slowed(metrics=curve))


def test_saves_that_take_long_are_to_be_rarer() -> None:
    run = RunEvents().training().steps(1, 5).phase("save", 5).steps(6, 10).finished()
    job = tiny_job(checkpoint={"every_steps": 5})
    (change, *_) = changes(record_of(run, job=job, saves=2), PartKind.CHECKPOINTS)
    share = 5 / record_of(run).goodput.wall_s
    assert change == f"save less often: checkpoint.every_steps={5 * -(-share // 0.01):.0f}"


def test_saves_at_an_automatic_interval_are_not_to_be_rarer() -> None:
    run = RunEvents().training().steps(1, 5).phase("save", 5).steps(6, 10).finished()
    job = tiny_job(checkpoint={"every_minutes": "auto"})
    assert changes(record_of(run, job=job, saves=2), PartKind.CHECKPOINTS) == []


def test_lost_steps_call_for_checkpoints_in_memory() -> None:
    run = RunEvents().training().steps(1, 100).ended("crash")
    run.next_attempt().training().steps(1, 101).finished()
    record = record_of(run, job=tiny_job())
    assert "lose fewer steps: checkpoint.in_memory_every_steps=auto" in changes(
        record, PartKind.RESTARTS
    )


def test_end_of_an_attempt_is_explained_with_its_log() -> None:
    end = AttemptEndedEvent.kind
    record = record_of(
        crashed(),
        ends=[event_of({"event": end, "process": 3, "end_reason": "crash", "reason": "it broke"})],
    )
    (part,) = [part for part in time_parts(record) if part.kind is PartKind.RESTARTS]
    found = explain(part, record)
    assert "1 x crash" in found.text
    assert "it broke" in found.text
    assert "--host 3 --tail 100" in found.changes[-1]


def test_compilation_from_the_cache_needs_no_cache() -> None:
    run = RunEvents().training().steps(1, 3).finished()
    fresh, cached = (CompiledEvent(seconds=8.0, from_cache=c) for c in (False, True))
    assert changes(record_of(run, compiled=[fresh]), PartKind.COMPILATION)
    assert not changes(record_of(run, compiled=[cached]), PartKind.COMPILATION)


def test_part_below_one_percent_has_no_advice() -> None:
    run = RunEvents().training().steps(1, 1000).phase("save", 1).finished()
    record = record_of(run, job=tiny_job(), saves=5)
    assert changes(record, PartKind.CHECKPOINTS) == []
    assert seconds(record)[PartKind.CHECKPOINTS] == pytest.approx(1.0)
