"""Where a run's time went: told from stories of runs, in seconds by the driver's clock."""

import json

import pytest

from launcher.core.json_output import to_json
from launcher.runs.goodput import Goodput, Part, goodput
from launcher.runs.status import PrintedStatus
from tests.support.run_builders import BEGIN_S, DAY_S, HOUR_S, RunEvents, parts

UNTIL_TRAINING = {"provisioning": 5, "start": 5.5, "data": 1, "compile": 8}


def test_every_moment_of_a_clean_run_has_its_part() -> None:
    story = RunEvents().training().steps(1, 10).phase("evaluate", 3).steps(11, 20)
    story.phase("save", 2).end("train").phase("sample", 4).after(1)
    story.ended("finished").after(1).state("finished")
    rest = {"steps": 20, "evaluate": 3, "save": 2, "sample": 4, "other": 2}
    assert story.parts() == {**UNTIL_TRAINING, **rest}


def test_the_share_is_that_of_steps_in_the_wall_time() -> None:
    found = goodput(RunEvents().training().steps(1, 78).finished().events)
    assert found.wall_s == pytest.approx(5 + 5.5 + 1 + 8 + 78 + 2)
    assert found.share == pytest.approx(78 / 99.5)


def test_restore_time_is_separate_from_start() -> None:
    story = RunEvents().started().after(1).phase("restore", 6).after(1).phase("compile", 2)
    assert story.parts()["restore"] == 6
    assert story.parts()["start"] == 2 + 3 - 0.5 + 2


def test_a_step_may_hold_a_phase_whose_time_is_not_its_own() -> None:
    story = RunEvents().training().steps(1, 1).after(0.25).phase("save", 7).after(0.75)
    story.host("step", step=2).finished()
    assert story.parts() == {**UNTIL_TRAINING, "steps": 2, "save": 7, "other": 2}


# What does not count


def crashed_at_step_7() -> RunEvents:
    """After a checkpoint of step 4, in the middle of step 8."""
    story = RunEvents().training().steps(1, 4).phase("save", 2).steps(5, 7).after(0.5)
    return story.ended("crash").after(0.5)


def test_steps_that_a_later_attempt_does_again_are_lost() -> None:
    story = crashed_at_step_7().state("backing_off").after(10).next_attempt()
    story.training().steps(5, 9).finished()
    assert story.parts() == {
        **{name: 2 * seconds for name, seconds in UNTIL_TRAINING.items()},
        "save": 2,
        "steps": 4 + 5,
        "lost": 3 + 0.5,
        "waiting": 10,
        "other": 0.5 + 2,
    }


def test_steps_that_a_later_attempt_passed_by_are_lost_too() -> None:
    """Attempt 2 began at step 5 and ended at once: what attempt 1 did after that never was."""
    story = crashed_at_step_7().next_attempt().training().steps(5, 5).ended("crash")
    assert story.parts()["steps"] == 4 + 1
    assert story.parts()["lost"] == 3 + 0.5


def test_steps_after_the_last_checkpoint_count_until_they_are_done_again() -> None:
    assert crashed_at_step_7().parts()["steps"] == 7


def test_a_run_that_starts_from_step_1_again_has_lost_all_steps() -> None:
    story = crashed_at_step_7().next_attempt().training().steps(1, 2)
    assert story.parts()["lost"] == 7 + 0.5


def test_a_hang_is_lost_from_the_last_step_to_the_end_of_the_attempt() -> None:
    story = RunEvents().training().steps(1, 3).after(120).launcher("hang").after(5).ended("hang")
    assert story.parts() == {**UNTIL_TRAINING, "steps": 3, "lost": 125}


def test_a_save_that_is_cut_off_is_lost_and_one_before_it_is_not() -> None:
    story = RunEvents().training().steps(1, 3).phase("save", 2).steps(4, 4).after(0.5).begin("save")
    story.after(30).ended("crash")
    assert story.parts() == {**UNTIL_TRAINING, "steps": 4, "save": 2, "lost": 30.5}


def test_a_compilation_that_is_cut_off_is_lost() -> None:
    story = RunEvents().started().begin("compile").after(20).ended("lost")
    assert story.parts()["lost"] == 20


def test_what_ends_in_order_loses_nothing() -> None:
    """A stop on request leaves the phase `train` without an end."""
    story = RunEvents().training().steps(1, 3).phase("save", 2).after(0.5).ended("stopped")
    story.after(0.5).state("stopped")
    assert story.parts() == {**UNTIL_TRAINING, "steps": 3, "save": 2, "other": 1}


def test_waiting_for_hosts_is_waiting() -> None:
    story = crashed_at_step_7().state("waiting_for_hosts").after(300).next_attempt().started()
    assert story.parts()["waiting"] == 300


# Waiting for data


def test_a_wait_for_data_counts_by_what_it_makes_steps_longer() -> None:
    """Steps of 1 s; the batch of step 4 comes 9 s late, while step 3 is under way."""
    story = RunEvents().training().steps(1, 2).steps(3, 3, 10).steps(4, 4, data_wait_s=9.5)
    story.steps(5, 6)
    assert story.parts()["data_wait"] == 9
    assert story.parts()["steps"] == 6


def test_a_wait_in_the_step_itself_counts_once() -> None:
    story = RunEvents().training().steps(1, 2).steps(3, 3, 10, data_wait_s=9).steps(4, 6)
    assert story.parts()["data_wait"] == 9


def test_a_run_that_always_waits_for_data_is_not_all_wait() -> None:
    """The first steps take 1 s, then the buffer is empty and a batch comes every 4 s."""
    story = RunEvents().training().steps(1, 5).steps(6, 25, 4, data_wait_s=4)
    assert story.parts()["data_wait"] == 20 * 3
    assert story.parts()["steps"] == 25


def test_a_wait_while_the_devices_are_busy_costs_nothing() -> None:
    story = RunEvents().training().steps(1, 20, data_wait_s=0.9)
    assert story.parts() == {**UNTIL_TRAINING, "steps": 20}


# Clocks, and what is not written down


@pytest.mark.parametrize("clock_s", [HOUR_S, -HOUR_S])
def test_the_clock_of_the_host_does_not_matter(clock_s: float) -> None:
    story = RunEvents(clock_s=clock_s).training().steps(1, 10).phase("save", 2).finished()
    assert story.parts() == {**UNTIL_TRAINING, "steps": 10, "save": 2, "other": 2}


def test_what_arrives_late_happened_when_the_host_said() -> None:
    """The network is away while 8 steps are made and a save: all of it arrives at once."""
    story = RunEvents(clock_s=HOUR_S).training().steps(1, 2)
    before = len(story.lines)
    story.steps(3, 6).phase("save", 3).steps(7, 10)
    for line in story.lines[before:]:
        line["received"] = story.now
    story.steps(11, 12).finished()
    assert story.parts() == {**UNTIL_TRAINING, "steps": 12, "save": 3, "other": 2}


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_is_set_while_steps_are_made_spoils_none(jump_s: float) -> None:
    story = RunEvents().training().steps(1, 5)
    story.clock_s = jump_s
    story.steps(6, 10).finished()
    assert story.parts() == {**UNTIL_TRAINING, "steps": 10, "other": 2}


def test_without_received_the_times_of_process_0_are_taken() -> None:
    story = RunEvents().training().steps(1, 10).finished()
    for line in story.lines:
        line.pop("received", None)
    assert story.parts() == {**UNTIL_TRAINING, "steps": 10, "other": 2}


def test_phases_of_other_hosts_are_ignored() -> None:
    story = RunEvents().training().steps(1, 2).host("phase", name="save", edge="begin", process=1)
    story.steps(3, 4).host("step", step=3, process=1).after(1).host("step", step=5)
    assert story.parts() == {**UNTIL_TRAINING, "steps": 5}


def test_an_end_that_was_not_heard_of_is_seen_by_the_next_step() -> None:
    """Events are dropped where the pipe to the launcher is full."""
    story = RunEvents().training().steps(1, 1).begin("save").after(2).steps(2, 4).finished()
    assert story.parts()["steps"] == 1 + 2
    assert story.parts()["save"] == 2 + 1


def test_an_attempt_that_begins_has_cut_off_the_one_before() -> None:
    story = (
        RunEvents()
        .training()
        .steps(1, 4)
        .after(0.5)
        .next_attempt()
        .phase("data", 1)
        .ended("stopped")
    )
    assert story.parts() == {**UNTIL_TRAINING, "data": 2, "steps": 4, "lost": 0.5}


# One run, several commands


def test_the_night_before_a_resume_is_no_time_of_the_run() -> None:
    story = RunEvents().training().steps(1, 4).phase("save", 1).ended("stopped").state("stopped")
    wall_s = story.now - BEGIN_S
    story.after(DAY_S).launcher("command_started").next_attempt().training().steps(5, 9).finished()
    found = goodput(story.events)
    assert found.wall_s == pytest.approx(wall_s + 19.5 + 5 + 2)
    assert found.seconds[Part.STEPS] == pytest.approx(9)


@pytest.mark.parametrize("state", ["running", "backing_off"])
def test_nor_is_it_when_the_command_was_killed(state: str) -> None:
    """Nothing tells of the end: the run ended when something was last heard of it."""
    story = crashed_at_step_7() if state == "backing_off" else RunEvents().training().steps(1, 4)
    story.state(state).after(0.5).host("heartbeat", step=4)
    wall_s = story.now - BEGIN_S
    story.after(DAY_S).launcher("command_started").next_attempt().training().steps(5, 9).finished()
    found = goodput(story.events)
    assert found.wall_s == pytest.approx(wall_s + 19.5 + 5 + 2)
    assert found.seconds[Part.STEPS] == pytest.approx(9)


def test_a_killed_run_has_lost_what_was_under_way() -> None:
    story = RunEvents().training().steps(1, 4).after(0.5).host("heartbeat", step=4)
    assert story.parts() == {**UNTIL_TRAINING, "steps": 4, "lost": 0.5}


def test_a_run_that_is_alive_goes_on_to_now() -> None:
    story = RunEvents().training().steps(1, 4)
    assert story.parts(story.now + 0.5) == {**UNTIL_TRAINING, "steps": 4.5}
    story.begin("evaluate")
    assert story.parts(story.now + 9) == {**UNTIL_TRAINING, "steps": 4, "evaluate": 9}


def test_a_run_that_has_finished_does_not() -> None:
    story = RunEvents().training().steps(1, 4).finished()
    assert story.parts(story.now + 60) == story.parts()


def test_of_a_run_without_events_nothing_is_known() -> None:
    found = goodput([])
    assert (found.wall_s, found.share, found.rows()) == (0, None, [])


# Any program


def program() -> RunEvents:
    return RunEvents().state("provisioning").after(5).state("starting").after(2).state("running")


def test_a_silent_program_has_no_goodput() -> None:
    found = goodput(program().after(40).ended("finished").state("finished").events)
    assert parts(found) == {"provisioning": 5, "start": 2, "program": 40}
    assert found.share is None
    assert (
        str(found)
        == "goodput not known (program 40.0 s of 47.0 s; provisioning 5.0 s, start 2.0 s)"
    )


def test_a_program_that_sends_steps_alone_starts_up_to_the_first() -> None:
    story = program().steps(1, 1, step_s=6).steps(2, 9).after(3).ended("finished")
    assert story.parts() == {"provisioning": 5, "start": 2 + 6, "steps": 8, "other": 3}


def test_a_phase_of_the_programs_own_is_something_else() -> None:
    story = program().steps(1, 1).phase("lunch", 30).steps(2, 3).ended("finished")
    assert story.parts() == {"provisioning": 5, "start": 3, "steps": 2, "other": 30}


# How it is shown


def test_rows_are_in_a_fixed_order_with_their_shares_and_without_zeros() -> None:
    found = goodput(RunEvents().training().steps(1, 80, 1.0).finished().events)
    names = [name for name, _, _ in found.rows()]
    assert names == ["provisioning", "start", "data", "compile", "steps", "other"]
    assert sum(share for _, _, share in found.rows()) == pytest.approx(1)
    assert ("compile", pytest.approx(8), pytest.approx(8 / 101.5)) in found.rows()


def test_one_line_shows_goodput_and_losses() -> None:
    story = RunEvents().training().steps(1, 75).steps(76, 76, 3).steps(77, 77, data_wait_s=9)
    assert str(goodput(story.events)) == (
        "goodput 78.2 % (steps 1:17 of 1:38; provisioning 5.0 s, start 5.5 s, data 1.0 s, "
        "compile 8.0 s, data wait 2.0 s)"
    )


def test_json_has_every_part_in_seconds() -> None:
    found = goodput(RunEvents().training().steps(1, 10).finished().events)
    printed = to_json(found.result())
    assert set(printed) == {"goodput", "wall_s", "parts_s"}
    assert list(printed["parts_s"]) == list(Part)
    assert sum(printed["parts_s"].values()) == pytest.approx(printed["wall_s"])
    assert printed["goodput"] == pytest.approx(10 / printed["wall_s"])


def test_goodput_that_a_remote_host_printed_is_read_back() -> None:
    seconds = {part: float(number) for number, part in enumerate(Part)}
    output = json.dumps({"alive": False, "goodput": to_json(Goodput(seconds).result())})
    printed = PrintedStatus.parse(output, "host-0000")
    assert printed.goodput and printed.goodput.goodput() == Goodput(seconds)
