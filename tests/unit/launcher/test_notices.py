"""Which events of a run are notified, and what the notifications say."""

import pytest

from launcher.core.events import AttemptEndedEvent, HangEvent, StateEvent, StragglerEvent
from launcher.core.states import EndReason, RunState
from launcher.notify import formats
from launcher.notify.notices import Notice, RunProgress
from trainer.contract.config.notify import NOTIFY_EVENTS, EmailTarget, NotifyEvent, UrlTarget
from trainer.contract.protocol.events import (
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    Event,
    HeartbeatEvent,
    RestoredEvent,
    StepEvent,
)


def progress() -> RunProgress:
    return RunProgress(run="small", folder="/runs/small", cluster="pod", steps=40)


def notices(*events: Event) -> list[Notice]:
    of_run = progress()
    return [notice for event in events if (notice := of_run.notice_of(event))]


def state(state: RunState, reason: str | None = None, attempt: int = 1) -> StateEvent:
    return StateEvent(time=7.0, attempt=attempt, state=state, reason=reason)


@pytest.mark.parametrize(
    ("event", "kind", "message"),
    [
        (state(RunState.FAILED, "host-0001 exited with code 1"), "failed", "host-0001 exited"),
        (state(RunState.CANCELLED, "pretrain has failed"), "cancelled", "pretrain has failed"),
        (state(RunState.OVER_BUDGET, "12 h of 12 h"), "budget", "12 h of 12 h"),
        (state(RunState.LOST, "killed"), "lost", "killed"),
        (HangEvent(time=7.0, reason="no progress for 60 s"), "hang", "no progress for 60 s"),
        (StragglerEvent(time=7.0, message="host-0002 is slow"), "straggler", "host-0002 is slow"),
    ],
)
def test_an_event_is_notified_with_its_reason(event: Event, kind: str, message: str) -> None:
    (notice,) = notices(event)
    assert (notice.event, notice.time) == (kind, 7.0)
    assert notice.message.startswith(message)


def test_a_finished_run_is_notified_with_its_last_step_and_loss() -> None:
    (notice,) = notices(
        StepEvent(process=0, step=40, loss=2.5),
        StepEvent(process=1, step=41, loss=9.0),
        CheckpointSavedEvent(step=30),
        state(RunState.FINISHED),
    )
    assert notice.text == "small has finished: step 40 of 40, loss 2.5000"
    assert (notice.step, notice.steps, notice.loss, notice.checkpoint) == (40, 40, 2.5, 30)


def test_a_discarded_checkpoint_is_not_notified() -> None:
    saved, discarded = CheckpointSavedEvent(step=30), CheckpointsDiscardedEvent(newest=20)
    (notice,) = notices(saved, discarded, state(RunState.FAILED))
    assert notice.checkpoint == 20


def test_a_program_without_steps_is_notified_when_it_finishes() -> None:
    (notice,) = notices(state(RunState.FINISHED))
    assert notice.text == "small has finished: its program has ended in order"


def test_a_later_attempt_is_notified_with_the_end_of_the_one_before() -> None:
    ended = AttemptEndedEvent(end_reason=EndReason.CRASH, reason="host-0001 was killed")
    (notice,) = notices(
        state(RunState.RUNNING), ended, RestoredEvent(step=20), state(RunState.RUNNING, attempt=2)
    )
    assert (notice.event, notice.checkpoint) == ("resumed", 20)
    assert notice.message == "attempt 2 has started (host-0001 was killed)"


def test_an_attempt_of_another_command_is_notified_as_resumed() -> None:
    (notice,) = notices(state(RunState.RUNNING, attempt=3))
    assert notice.message == "attempt 3 has started (resumed by a command)"


@pytest.mark.parametrize("ended", [RunState.STOPPED, RunState.INTERRUPTED, RunState.QUEUED])
def test_what_the_user_does_is_not_notified(ended: RunState) -> None:
    assert notices(state(RunState.RUNNING), state(ended)) == []


def test_heartbeats_and_waits_are_not_notified() -> None:
    waits = state(RunState.BACKING_OFF, "crash"), state(RunState.WAITING_FOR_HOSTS)
    assert notices(HeartbeatEvent(process=0), *waits) == []


def notice(event: NotifyEvent, message: str = "a < b & c") -> Notice:
    return progress().notice(event, state(RunState.FAILED), message)


def test_slack_gets_text_without_markup_of_links() -> None:
    target = UrlTarget(url="https://x.org", format="slack")
    data = formats.http_body(target, notice("failed")).data
    assert data == b'{"text": "*small has failed*\\na &lt; b &amp; c"}'


@pytest.mark.parametrize("event", NOTIFY_EVENTS)
def test_ntfy_gets_every_event_with_a_title_and_tags(event: NotifyEvent) -> None:
    body = formats.http_body(UrlTarget(url="https://x.org", format="ntfy"), notice(event, "né"))
    assert body.data.decode() == "né"
    assert body.headers["Title"].startswith("small ")
    assert body.headers["Tags"] and all(value.isascii() for value in body.headers.values())


def test_a_mail_has_a_subject_a_sender_and_the_facts() -> None:
    mail = formats.email(EmailTarget(email="me@x.org", smtp="x:25"), notice("failed"))
    assert (mail["Subject"], mail["From"], mail["To"]) == (
        "small has failed",
        "me@x.org",
        "me@x.org",
    )
    assert mail.get_content().splitlines()[0] == "a < b & c"
    assert "run         /runs/small" in mail.get_content()
