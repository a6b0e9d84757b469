"""When an agent counts as lost: after its own silence, not after that of the driver."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.health.lost_hosts import LONGEST_INTERVAL_S, SILENCE_S, LostHostDetector


def detector(processes: int) -> LostHostDetector:
    """A detector that has heard from all processes at time 0."""
    made = LostHostDetector(0.0)
    for process in range(processes):
        made.answered(process)
    return made


LOOKS = st.lists(st.floats(0.0, LONGEST_INTERVAL_S), max_size=50)


@given(LOOKS)
def test_an_agent_is_lost_once_it_has_been_silent_for_too_long(looks_s: list[float]) -> None:
    silence, now = detector(1), 0.0
    for look_s in looks_s:
        now += look_s
        assert silence.lost(now) == ([0] if now > SILENCE_S else [])


def test_one_that_answers_is_never_lost() -> None:
    silence = detector(2)
    for now in range(100):
        silence.answered(1)
        assert silence.lost(float(now)) == ([0] if now > SILENCE_S else [])


def test_nobody_waits_for_one_whose_program_is_over() -> None:
    silence = detector(1)
    silence.forget(0)
    assert [silence.lost(now) for now in (1.0, 50.0)] == [[], []]


def test_a_driver_that_was_stopped_itself_holds_no_silence_against_anybody() -> None:
    silence = detector(1)
    assert silence.lost(3600.0) == []
