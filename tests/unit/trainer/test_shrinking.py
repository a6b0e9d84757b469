"""Which worlds a host compiles for in advance, and as which process."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.jobs import corpus_of, job_of, world_of
from trainer.ahead.shrinking import numbers_after, smaller_plans, work_of
from trainer.contract.planning.plan import World
from trainer.contract.planning.planner import resolve


def slices_of(slices: int, hosts: int) -> World:
    return world_of(hosts).model_copy(update={"slices": slices})


@st.composite
def shrinks(draw: st.DrawFn) -> tuple[World, World, list[int]]:
    """A world, a smaller one, and the processes of the first that stay, in order."""
    hosts = draw(st.integers(1, 4))
    units = draw(st.integers(2, 6))
    staying = draw(st.lists(st.integers(0, units - 1), unique=True, min_size=1, max_size=units - 1))
    if hosts == 1:
        return world_of(units), world_of(len(staying)), sorted(staying)
    processes = [unit * hosts + worker for unit in sorted(staying) for worker in range(hosts)]
    return slices_of(units, hosts), slices_of(len(staying), hosts), processes


@given(shrinks())
def test_a_host_compiles_for_the_number_that_it_has_after_a_shrink(
    shrink: tuple[World, World, list[int]],
) -> None:
    now, smaller, staying = shrink
    for number, process in enumerate(staying):
        assert number in numbers_after(process, now, smaller)


@given(shrinks())
def test_all_hosts_together_compile_for_every_process(
    shrink: tuple[World, World, list[int]],
) -> None:
    now, smaller, _ = shrink
    found = [set(numbers_after(process, now, smaller)) for process in range(now.processes)]
    assert set().union(*found) == set(range(smaller.processes))


@given(shrinks())
def test_a_host_compiles_for_no_more_numbers_than_it_may_have(
    shrink: tuple[World, World, list[int]],
) -> None:
    now, smaller, _ = shrink
    lost = now.slices - smaller.slices if now.slices > 1 else now.processes - smaller.processes
    for process in range(now.processes):
        numbers = list(numbers_after(process, now, smaller))
        assert len(set(numbers)) == len(numbers) <= lost + 1


def test_a_lost_host_takes_all_its_processes_with_it() -> None:
    now, smaller = (world_of(hosts, 2, processes_per_host=2) for hosts in (3, 2))
    assert [list(numbers_after(process, now, smaller)) for process in range(6)] == [
        [0], [1], [2, 0], [3, 1], [2], [3]
    ]  # fmt: skip


def test_the_number_without_a_loss_before_it_comes_first() -> None:
    assert list(numbers_after(2, world_of(4), world_of(3))) == [2, 1]
    assert list(numbers_after(3, world_of(4), world_of(3))) == [2]


def test_slices_are_lost_as_a_whole() -> None:
    assert list(numbers_after(5, slices_of(3, 2), slices_of(2, 2))) == [3]
    assert list(numbers_after(3, slices_of(3, 2), slices_of(2, 2))) == [3, 1]


def test_the_largest_of_the_smaller_worlds_comes_first(tmp_path: Path) -> None:
    job = job_of(data={"global_batch": 12})
    (tmp_path / "plans").mkdir()
    for hosts in (1, 2, 3, 4):
        plan = resolve(job, world_of(hosts), corpus_of(job))
        (tmp_path / f"plans/smaller-{hosts:04d}.json").write_text(plan.model_dump_json())
    plans = smaller_plans(tmp_path, world_of(3))
    assert [plan.world.processes for _, plan in plans] == [2, 1]
    work = [(path.stem, number) for path, number in work_of(1, world_of(3), plans)]
    assert work == [("smaller-0002", 1), ("smaller-0002", 0), ("smaller-0001", 0)]


def test_a_run_that_cannot_shrink_has_nothing_to_compile(tmp_path: Path) -> None:
    assert smaller_plans(tmp_path, world_of(3)) == []
