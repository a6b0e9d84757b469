"""Why an attempt ended, from what its hosts reported."""

import signal

from launcher.controller.classify import classify, wrong_hosts
from launcher.core.results import GangResult, Hang, ProcessExit, StalledHost, first_failure
from launcher.core.states import EndReason

FINISHED, STOPPED = ProcessExit(0, 1.0), ProcessExit(75 << 8, 1.0)
CRASHED = ProcessExit(1 << 8, 1.0)


def outcome(*exits: ProcessExit, hang: Hang | None = None) -> GangResult:
    numbered = dict(enumerate(exits))
    return GangResult(numbered, first_failure(numbered), hang)


def kind(*exits: ProcessExit, asked: EndReason | None = None) -> EndReason:
    return classify(outcome(*exits), asked, {}).end_reason


def test_all_hosts_finished() -> None:
    assert kind(FINISHED, FINISHED) is EndReason.FINISHED


def test_requested_stop_is_attributed_to_requester() -> None:
    assert kind(STOPPED, STOPPED, asked=EndReason.STOPPED) is EndReason.STOPPED
    assert kind(STOPPED, STOPPED, asked=EndReason.BUDGET) is EndReason.BUDGET
    ending = classify(outcome(STOPPED, STOPPED), EndReason.RESIZED, {})
    assert (ending.end_reason, ending.reason) == (
        EndReason.RESIZED,
        "stopped to go on with more hosts",
    )


def test_stop_not_requested_is_unexplained_preemption() -> None:
    ending = classify(outcome(FINISHED, STOPPED), None, {1: 7})
    assert (ending.end_reason, ending.process, ending.step) == (EndReason.PREEMPTED, 1, 7)
    assert ending.is_unexplained
    reason = "host-0001 exited with code 75 (stopped on request); this launch did not ask for that"
    assert ending.reason == reason


def test_hosts_that_computed_wrong_are_named_and_the_run_goes_on() -> None:
    wrong = ProcessExit(75 << 8, 1.0, final_report="wrong_host")
    back = ProcessExit(75 << 8, 1.0, final_report="rewound")
    found = outcome(back, wrong, back)
    ending = classify(found, None, {0: 5, 1: 5, 2: 5})
    assert (ending.end_reason, ending.process, ending.step) == (EndReason.WRONG_HOST, 1, 5)
    assert ending.reason.startswith("host-0001 computed wrong")
    assert ending.end_reason.is_restart and ending.end_reason.is_orderly
    assert wrong_hosts(found) == [1]


def test_sigterm_not_sent_by_launch_is_unexplained_preemption() -> None:
    ending = classify(outcome(ProcessExit(signal.SIGTERM, 1.0), FINISHED), None, {})
    assert (ending.end_reason, ending.is_unexplained) == (EndReason.PREEMPTED, True)


def test_a_stop_after_a_notice_of_the_platform_is_explained() -> None:
    for ended in (STOPPED, ProcessExit(signal.SIGTERM, 1.0)):
        ending = classify(outcome(ended, STOPPED), EndReason.PREEMPTED, {})
        assert (ending.end_reason, ending.is_unexplained) == (EndReason.PREEMPTED, False)


def test_out_of_memory_kill_is_a_crash_with_figures() -> None:
    cause = "by the kernel, out of memory: 5.90 GiB of 6.00 GiB on the host"
    ending = classify(outcome(ProcessExit(signal.SIGKILL, 1.0, cause=cause)), None, {})
    assert ending.end_reason is EndReason.CRASH
    assert ending.reason == f"host-0000 was killed by SIGKILL ({cause})"


def test_an_agent_that_fails_on_a_host_that_lives_is_a_crash() -> None:
    failed = ProcessExit(None, 1.0, lost="its agent was killed", host_lives=True)
    ending = classify(outcome(failed, FINISHED), None, {})
    assert (ending.end_reason, ending.how) == (EndReason.CRASH, "its agent failed")
    assert ending.reason == "host-0000 failed: its agent was killed"


def test_agent_failing_during_user_stop_is_lost_host() -> None:
    failed = ProcessExit(None, 1.0, lost="its agent was killed", host_lives=True)
    assert kind(failed, STOPPED, asked=EndReason.STOPPED) is EndReason.LOST
    assert kind(failed, STOPPED, asked=EndReason.RESIZED) is EndReason.CRASH


def test_an_exit_code_or_a_signal_is_a_crash() -> None:
    ending = classify(outcome(FINISHED, CRASHED), None, {})
    assert (ending.end_reason, ending.process, ending.step) == (EndReason.CRASH, 1, None)
    assert ending.how == "exited with code 1"
    assert kind(ProcessExit(signal.SIGSEGV, 1.0)) is EndReason.CRASH


def test_the_step_of_a_crash_is_that_of_the_host_that_failed_first() -> None:
    """How far the others got before they missed it is chance."""
    crashed = outcome(ProcessExit(1 << 8, 2.0, final_report="peer_lost"), CRASHED)
    assert classify(crashed, None, {0: 49, 1: 48}).step == 48


def test_step_of_silent_host_is_that_of_others() -> None:
    assert classify(outcome(FINISHED, CRASHED), None, {0: 49}).step == 49


def test_bad_configuration_data_or_numbers_are_final() -> None:
    assert kind(ProcessExit(64 << 8, 1.0)) is kind(ProcessExit(65 << 8, 1.0)) is EndReason.FINAL


def test_a_failure_while_the_user_stops_the_run_is_not_tried_again() -> None:
    assert kind(CRASHED, STOPPED, asked=EndReason.STOPPED) is EndReason.FINAL


def test_a_failure_while_hosts_make_room_for_more_is_tried_again() -> None:
    assert kind(CRASHED, STOPPED, asked=EndReason.RESIZED) is EndReason.CRASH


def test_a_host_without_a_status_is_lost() -> None:
    assert kind(ProcessExit(None, 1.0, lost="its agent is gone"), FINISHED) is EndReason.LOST


def test_an_attempt_that_was_overtaken_by_another_one_ends_the_run() -> None:
    assert kind(ProcessExit(75 << 8, 1.0, final_report="stale"), FINISHED) is EndReason.FINAL


def test_the_first_host_that_another_attempt_has_replaced_is_named() -> None:
    stale = ProcessExit(75 << 8, 1.0, final_report="stale")
    assert classify(outcome(FINISHED, stale, stale), None, {}).process == 1


def test_first_of_several_slow_hosts_decides_last_step() -> None:
    behind = (StalledHost(1, "data", 7, 12.0), StalledHost(2, "save", 6, 12.0))
    hang = Hang(behind, silent=False, deadline_s=10.0, everybody=False)
    killed = ProcessExit(signal.SIGKILL, 1.0)
    ending = classify(outcome(killed, killed, killed, hang=hang), None, {0: 8, 1: 7, 2: 6})
    assert (ending.process, ending.how, ending.step) == (1, "hang in data", 7)


def test_a_hang_names_the_host_that_is_behind_and_its_phase() -> None:
    hang = Hang((StalledHost(1, "data", 7, 12.0),), silent=False, deadline_s=10.0, everybody=False)
    killed = ProcessExit(signal.SIGKILL, 1.0, stopped=True)
    ending = classify(outcome(killed, killed, hang=hang), None, {0: 8, 1: 7})
    assert (ending.end_reason, ending.process, ending.how) == (EndReason.HANG, 1, "hang in data")
    assert ending.step == 7
    assert "host-0001: no progress in data after step 7 for 12 s" in ending.reason
