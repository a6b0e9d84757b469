"""Which slices a gang takes."""

from launcher.gang.host_selection import Host, choose
from launcher.providers.ray.node_spec import HostSlot


def hosts(name: str, *idle: bool) -> list[Host]:
    return [Host(name, number, free) for number, free in enumerate(idle)]


def chosen(
    alive: list[Host], slices: int, hosts_per_slice: int, avoided: set[HostSlot] | None = None
) -> list[HostSlot]:
    found, problem = choose(alive, slices, hosts_per_slice, avoided or set())
    assert found is not None, problem
    return [host.place for host in found]


def problem_with(alive: list[Host], slices: int, hosts_per_slice: int) -> str:
    found, problem = choose(alive, slices, hosts_per_slice)
    assert found is None
    return problem


def test_a_whole_idle_slice_is_taken() -> None:
    assert chosen(hosts("a", True, True), 1, 2) == [("a", 0), ("a", 1)]


def test_a_busy_slice_is_passed_over_for_an_idle_one() -> None:
    alive = hosts("a", True, False) + hosts("b", True, True)
    assert chosen(alive, 1, 2) == [("b", 0), ("b", 1)]


def test_processes_are_in_the_order_of_slices_and_workers() -> None:
    alive = hosts("b", True, True)[::-1] + hosts("a", True, True)[::-1]
    assert chosen(alive, 2, 2) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_unavailable_slice_is_tried_only_without_another() -> None:
    a, b = hosts("a", True, True), hosts("b", True, True)
    assert chosen(a + b, 1, 2, {("a", 1)}) == [("b", 0), ("b", 1)]
    assert chosen(a, 1, 2, {("a", 1)}) == [("a", 0), ("a", 1)]
    assert chosen(a + b, 2, 2, {("a", 1)})[:2] == [("a", 0), ("a", 1)]


def test_a_host_without_a_slice_that_could_not_be_had_is_left_for_another() -> None:
    assert chosen(hosts("", True, True, True), 1, 2, {("", 0)}) == [("", 1), ("", 2)]


def test_hosts_that_this_run_holds_are_preferred_to_idle_ones() -> None:
    alive = [Host("", 0, node_id="x"), Host("", 1, idle=False, node_id="y"), Host("", 2)]
    found, _ = choose(alive, 1, 2, held={"y"})
    assert found and [host.number for host in found] == [0, 1]


def test_a_slice_of_which_this_run_holds_the_other_hosts_is_completed() -> None:
    held = Host("b", 1, idle=False, node_id="y")
    found, _ = choose([*hosts("a", True, True), Host("b", 0), held], 1, 2, held={"y"})
    assert found and [host.place for host in found] == [("b", 0), ("b", 1)]


def test_a_held_host_that_was_lost_lately_is_left_for_another() -> None:
    alive = [Host("", 0, idle=False, node_id="x"), Host("", 1)]
    found, _ = choose(alive, 1, 1, avoided={("", 0)}, held={"x"})
    assert found and [host.number for host in found] == [1]


def test_busy_hosts_are_reported_as_busy() -> None:
    problem = problem_with(hosts("a", False, False), 1, 2)
    assert problem == "all hosts are alive, but those of a are in use by another run"


def test_nothing_is_taken_where_a_worker_is_missing() -> None:
    assert "worker 1 is missing" in problem_with(hosts("a", True), 1, 2)


def test_hosts_without_slices_are_counted() -> None:
    problem = problem_with([Host("", 0)], 1, 2)
    assert problem == "1 of 2 hosts are alive; host 1 is missing"
