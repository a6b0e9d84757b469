"""The `notify` and `budget` sections: what is accepted, and what an error says."""

from pathlib import Path
from typing import Any

import pytest

from trainer.contract.config.command import load_job
from trainer.contract.config.loader import ConfigError, dump
from trainer.contract.config.notify import CommandTarget, EmailTarget, UrlTarget

JOB = "name: any\ncommand: [true]\n"


def problems(folder: Path, more: str) -> list[str]:
    path = folder / "job.yaml"
    path.write_text(JOB.replace("[true]", "['true']") + more)
    with pytest.raises(ConfigError) as error:
        load_job(path)
    return [line.removeprefix(f"{path}") for line in error.value.lines]


def targets(folder: Path, text: str) -> Any:
    path = folder / "job.yaml"
    path.write_text(JOB.replace("[true]", "['true']") + f"notify: {text}\n")
    return load_job(path).value.notify


def test_a_job_without_targets_differs_from_one_with_an_empty_list(tmp_path: Path) -> None:
    assert targets(tmp_path, "null") is None
    assert targets(tmp_path, "[]") == ()


def test_the_key_of_a_target_says_what_it_is(tmp_path: Path) -> None:
    text = "[{url: 'https://x.org/a'}, {email: me@x.org, smtp: 'x.org:25'}, {command: [ls]}]"
    found = targets(tmp_path, text)
    assert [type(target) for target in found] == [UrlTarget, EmailTarget, CommandTarget]


def test_a_job_with_targets_is_read_back_from_its_run_folder(tmp_path: Path) -> None:
    text = "[{url_secret: HOOK, events: [lost]}, {email: me@x.org, smtp: 'x.org:25'}]"
    found = targets(tmp_path, text)
    path = tmp_path / "job.yaml"
    path.write_text(dump(load_job(path).value))
    assert load_job(path).value.notify == found


def test_a_label_has_no_path_and_no_user_of_a_url(tmp_path: Path) -> None:
    (target,) = targets(tmp_path, "[{url: 'https://me:pass@x.org:8443/services/T0/key?a=b'}]")
    assert target.label == "https://x.org:8443"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("url: ftp://x.org", "url: expected http://... or https://..., found 'ftp://x.org'"),
        ("url: 'http://[x'", "url: expected http://... or https://..., found 'http://[x'"),
        ("url: 'http://x.org:port/'", "url: expected http"),
        ("url: https://x.org, url_secret: X", "url_secret: cannot be combined with url"),
        ("url_secret: 3X", "url_secret: "),
        ("format: slack", "expected a target with url, url_secret, email or command"),
        ("url: https://x.org, format: teams", "format: 'teams' is not one of json, slack, ntfy"),
        ("url: https://x.org, events: [done]", "events.0: 'done' is not one of finished, failed"),
        ("url: https://x.org, events: []", "events: the list is empty"),
        ("email: me, smtp: 'x:25'", "email: expected an address (me@example.com), found 'me'"),
        ("email: me@x.org", "smtp: missing"),
        ("email: me@x.org, smtp: x.org", "smtp: expected HOST:PORT"),
        ("email: me@x.org, smtp: 'x:25', user: me", "password_secret: missing"),
        (
            "email: me@x.org, smtp: 'x:25', user: me, password_secret: P, security: none",
            "security: none would send the password in the clear",
        ),
        ("command: []", "command: the program is missing"),
        ("command: notify-send", "command: expected a list"),
        ("command: [ls], ur: x", "ur: unknown key"),
    ],
)
def test_a_wrong_target_is_named_with_its_key(tmp_path: Path, target: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"notify: [{{{target}}}]\n")
    assert f"notify.0.{problem}" in found or f"notify.0: {problem}" in found


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ("{}", "budget: expected at least one of hours, chip_hours and dollars"),
        ("{hours: 0}", "budget.hours: expected a number above 0"),
        ("{chips: 3}", "budget.chips: unknown key"),
    ],
)
def test_a_wrong_budget_is_named_with_its_key(tmp_path: Path, budget: str, problem: str) -> None:
    (found,) = problems(tmp_path, f"budget: {budget}\n")
    assert problem in found
