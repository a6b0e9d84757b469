"""How the processes of a gang end: a failure of one, a stop of all."""

from pathlib import Path

import pytest

from launcher.gang.gang import Gang
from launcher.gang.monitor import GangMonitor
from launcher.host.process import REAPER_KILLED
from tests.support.gang_programs import Script, Seen


def test_when_a_host_fails_the_others_are_ended_and_it_is_named(crew: Gang) -> None:
    outcome = crew.run(Script("print('bye') if process else time.sleep(999); sys.exit(7)"))
    assert outcome.failed_process == 1
    assert outcome.code == 7
    assert outcome.tail == ["bye"]
    assert outcome.exits[0].stopped


def test_a_host_whose_reaper_is_killed_has_failed_for_that_reason(crew: Gang) -> None:
    outcome = crew.run(
        Script("print('hello', flush=True); process or os.kill(os.getppid(), 9); time.sleep(999)")
    )
    assert outcome.reason == f"host-0000 failed: {REAPER_KILLED}"


@pytest.mark.parametrize(
    ("events", "meaning"),
    [
        (["started"], "initialization failed, see above"),
        (["started", "initialized", "step"], "an abort in native code, see above"),
        ([], "an abort in native code, see above"),
    ],
    ids=["before", "after", "unknown"],
)
def test_an_abort_is_a_failed_initialization_only_before_its_end(
    crew: Gang, events: list[str], meaning: str
) -> None:
    outcome = crew.run(Script(f"[say(event=one) for one in {events}]; os.abort()"))
    assert outcome.reason.endswith(f"was killed by SIGABRT ({meaning})")


class Asking(GangMonitor):
    """Wants all hosts to stop as soon as they are up."""

    def __init__(self, seen: Seen, grace_s: float) -> None:
        self.grace_s = grace_s
        self._seen = seen

    def should_stop(self) -> bool:
        return sum(event["event"] == "up" for event in self._seen.events) == 2


class Patient(GangMonitor):
    grace_s = 30.0


SAVES = """
import signal
def save(number, frame):
    say(event="saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
say(event="up")
"""


def test_all_hosts_are_stopped_in_order_when_that_is_asked_for(crew: Gang, seen: Seen) -> None:
    outcome = crew.run(Script(SAVES + "time.sleep(999)"), None, Asking(seen, grace_s=30.0))
    assert outcome.stopped
    assert {e["process"] for e in seen.events if e["event"] == "saved"} == {0, 1}
    assert [ended.code for ended in outcome.exits.values()] == [75, 75]


def test_a_host_that_stops_by_itself_stops_the_others(crew: Gang, tmp_path: Path) -> None:
    """Once the other one is up, and so can stop in order."""
    code = f"""
up = {str(tmp_path / "up")!r}
if process:
    open(up, "w").close()
    time.sleep(999)
while not os.path.exists(up):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGTERM)
"""
    outcome = crew.run(Script(SAVES + code), None, Patient())
    assert outcome.stopped
    assert outcome.cut_off == ""


def test_a_host_that_fails_in_a_stop_ends_the_others_at_once(crew: Gang, seen: Seen) -> None:
    hangs = SAVES.replace('say(event="saved")', "sys.exit(1) if process else time.sleep(999)")
    code = hangs + "time.sleep(999)"
    outcome = crew.run(Script(code), None, Asking(seen, grace_s=900.0))
    assert outcome.stopped
    assert "host-0001 exited with code 1" in outcome.cut_off


def test_killed_program_is_reported_with_signal(crew: Gang) -> None:
    outcome = crew.run(Script("os.kill(os.getpid(), 9 * process)"))
    assert "host-0001 was killed by SIGKILL" in outcome.reason
