"""Which slices a gang takes."""

from launcher.reservation import Host, choose


def hosts(name: str, *idle: bool) -> list[Host]:
    return [Host(name, number, free) for number, free in enumerate(idle)]


def test_a_whole_idle_slice_is_taken() -> None:
    assert choose(hosts("a", True, True), slices=1, hosts_per_slice=2) == ([("a", 0), ("a", 1)], "")


def test_a_busy_slice_is_passed_over_for_an_idle_one() -> None:
    alive = hosts("a", True, False) + hosts("b", True, True)
    assert choose(alive, slices=1, hosts_per_slice=2) == ([("b", 0), ("b", 1)], "")


def test_busy_hosts_are_told_as_busy() -> None:
    chosen, problem = choose(hosts("a", False, False), slices=1, hosts_per_slice=2)
    assert chosen is None
    assert problem == "all hosts are alive, but those of a are in use by another run"


def test_nothing_is_taken_where_a_worker_is_missing() -> None:
    chosen, problem = choose(hosts("a", True), slices=1, hosts_per_slice=2)
    assert chosen is None
    assert "worker 1 is missing" in problem


def test_hosts_without_slices_are_counted() -> None:
    chosen, problem = choose([Host("", 0)], slices=1, hosts_per_slice=2)
    assert chosen is None
    assert problem == "1 of 2 hosts are alive; host 1 is missing"
