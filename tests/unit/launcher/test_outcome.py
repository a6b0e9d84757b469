"""What became of a gang: pure decisions."""

import signal

from launcher.core.results import GangResult, ProcessExit, describe_exit, first_failure
from launcher.gang.host_selection import missing_workers
from launcher.gang.outliers import find_outliers

FAILED, FINISHED, STOPPED = 1 << 8, 0, 75 << 8


def test_the_first_failure_is_the_earliest() -> None:
    exits = {
        0: ProcessExit(FAILED, 20.0),
        1: ProcessExit(FAILED, 10.0),
        2: ProcessExit(FINISHED, 5.0),
    }
    assert first_failure(exits) == 1


def test_a_host_that_was_asked_to_end_did_not_fail() -> None:
    exits = {0: ProcessExit(signal.SIGTERM, 1.0, stopped=True), 1: ProcessExit(FAILED, 2.0)}
    assert first_failure(exits) == 1


def test_a_host_that_lost_its_peers_is_not_the_first_failure() -> None:
    killed = ProcessExit(signal.SIGKILL, 3.0)
    for follows in (
        ProcessExit(FAILED, 1.0, final_report="peer_lost"),
        ProcessExit(signal.SIGABRT, 2.0),
    ):
        assert first_failure({0: follows, 1: killed}) == 1
        assert first_failure({0: follows}) == 0


def test_hosts_that_stopped_on_a_request_of_their_own_did_not_fail() -> None:
    exits = {0: ProcessExit(STOPPED, 2.0), 1: ProcessExit(STOPPED, 1.0)}
    outcome = GangResult(exits, first_failure(exits))
    assert outcome.stopped
    assert not outcome.ok
    assert outcome.reason == "stopped on request"
    assert outcome.cut_off == ""


def test_a_stop_that_a_host_did_not_survive_names_the_first() -> None:
    killed = ProcessExit(signal.SIGKILL, 3.0, stopped=True)
    exits = {0: ProcessExit(STOPPED, 1.0), 1: killed, 2: ProcessExit(FAILED, 2.0, stopped=True)}
    outcome = GangResult(exits, first_failure(exits))
    assert outcome.stopped
    assert outcome.cut_off == "host-0002 exited with code 1"


def test_no_failure_is_ok() -> None:
    exits = {0: ProcessExit(FINISHED, 1.0), 1: ProcessExit(FINISHED, 2.0)}
    assert GangResult(exits, first_failure(exits)).ok


def test_outcome_has_code_reason_and_last_lines_of_first_failure() -> None:
    outcome = GangResult({1: ProcessExit(65 << 8, 1.0, tail=["why"])}, 1)
    assert outcome.code == 65
    assert outcome.reason == "host-0001 exited with code 65 (bad data or numbers)"
    assert outcome.tail == ["why"]


def test_signals_have_no_exit_code_but_a_meaning() -> None:
    outcome = GangResult({0: ProcessExit(signal.SIGABRT, 1.0)}, 0)
    assert outcome.code is None
    assert outcome.reason == "host-0000 was killed by SIGABRT (an abort in native code, see above)"


def test_an_abort_while_processes_connect_is_a_failed_initialization() -> None:
    reason = describe_exit(0, ProcessExit(signal.SIGABRT, 1.0, initializing=True))
    assert reason == "host-0000 was killed by SIGABRT (initialization failed, see above)"


def test_a_lost_host_says_why() -> None:
    assert describe_exit(3, ProcessExit(None, 0.0, lost="gone")) == "host-0003 was lost: gone"


def test_equal_hosts_have_no_odd_one() -> None:
    assert find_outliers({0: {"versions": {"jax": "1"}}, 1: {"versions": {"jax": "1"}}}) == (
        [],
        set(),
    )


def test_the_odd_host_is_named_with_its_version() -> None:
    reports = {p: {"versions": {"jax": "9.9.9" if p == 2 else "0.10.2"}} for p in range(4)}
    assert find_outliers(reports)[0] == [
        "versions.jax differs: host-0002 has 9.9.9; the other hosts have 0.10.2"
    ]


def test_a_value_that_one_host_lacks_differs() -> None:
    assert "host-0001 has missing" in find_outliers({0: {"a": 1}, 1: {}, 2: {"a": 1}})[0][0]


def test_whole_slices_miss_nobody() -> None:
    assert missing_workers([("a", 0), ("a", 1)], slices=1, hosts_per_slice=2) == ""


def test_a_missing_worker_is_named() -> None:
    alive = [("slice-a", worker) for worker in (0, 1, 3)]
    text = missing_workers(alive, slices=1, hosts_per_slice=4)
    assert text == "3 of 4 hosts of slice-a are alive; worker 2 is missing"


def test_missing_workers_of_several_slices_are_named() -> None:
    text = missing_workers([("a", 0), ("b", 1)], slices=3, hosts_per_slice=3)
    assert "1 of 3 hosts of a are alive; workers 1, 2 are missing" in text
    assert "2 of 3 slices have a host alive" in text


def test_a_spare_whole_slice_makes_up_for_a_broken_one() -> None:
    assert missing_workers([("a", 0), ("b", 0), ("b", 1)], slices=1, hosts_per_slice=2) == ""
