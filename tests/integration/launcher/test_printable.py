"""What a program printed reaches the terminal as text, and never as an order to it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import JobError
from launcher.core.exit_codes import print_error
from launcher.core.printable import coloured, plain
from launcher.core.states import RunState
from tests.support.cli import launch
from tests.support.run_folders import add_events, add_log, make_run

TITLE, CLIPBOARD, MOVE, C1 = "\x1b]0;bad\x07", "\x1b]52;c;YmFk\x07", "\x1b[2J\x1b[1A", "\x9b2J"
ORDERS = TITLE + CLIPBOARD + MOVE + C1 + "\x08\x7f\x00"


def controls(text: str) -> set[str]:
    return {c for c in text if not c.isprintable() and c not in "\n\t"}


@given(st.text())
def test_plain_text_has_no_control_characters(text: str) -> None:
    assert not {c for c in plain(text) if ord(c) < 32 or 127 <= ord(c) < 160} - {"\n", "\t"}


def test_text_without_control_characters_stays_as_it_is() -> None:
    assert plain("a\tb\ncafé 日本") == coloured("a\tb\ncafé 日本") == "a\tb\ncafé 日本"


def test_a_progress_bar_on_one_line_stays_readable() -> None:
    assert plain("10%\r20%") == "10% 20%"


def test_of_escape_sequences_only_colours_are_left_and_end_with_the_line() -> None:
    assert coloured(f"\x1b[31mred{MOVE}") == "\x1b[31mred[2J[1A\x1b[0m"


def test_an_error_message_gives_the_terminal_no_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = JobError(f"why{ORDERS}", details=[f"line{ORDERS}"], hint=f"hint{ORDERS}")
    assert print_error(error) == 1
    assert not controls(text := capsys.readouterr().err)
    assert all(word in text for word in ("why", "line", "hint"))


@pytest.mark.parametrize("words", [[], ["--host", "0"], ["--tail", "1"]])
def test_logs_show_no_order_to_the_terminal(tmp_path: Path, words: list[str]) -> None:
    with make_run(tmp_path) as run:
        add_log(run, 0, f"hello {ORDERS}\n".encode())
    shown = launch(tmp_path, "logs", "small", *words).stdout
    assert "hello " in shown
    assert not controls(shown)


@pytest.mark.parametrize("words", [["status", "small"], ["stop", "small"], ["list"]])
def test_a_state_shows_no_order_to_the_terminal(tmp_path: Path, words: list[str]) -> None:
    ended = {
        "event": "attempt_ended",
        "end_reason": "crash",
        "reason": ORDERS,
        "process": 0,
        "step": 1,
    }
    with make_run(tmp_path) as run:
        add_events(run, ended)
        run.set_state(RunState.FAILED, reason=f"why{ORDERS}")
    path = run.folder / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "cluster": {"name": ORDERS}}))
    shown = launch(tmp_path, *words, environment={"COLUMNS": "200"})
    assert shown.returncode == 0
    assert not controls(shown.stdout + shown.stderr)
