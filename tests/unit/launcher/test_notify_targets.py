"""The targets of a job, from its file or the user's, and what is wrong with them from here."""

from pathlib import Path

import pytest

from launcher.planning import job_secrets, notify_targets
from launcher.planning.user_config import load_user_config
from tests.support.launch_plans import COMMAND_JOB, command_launch
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.notify import UrlTarget

OF_USER = "notify:\n  - {url: 'https://127.0.0.1/user'}\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration file, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "slipway" / "config.yaml"
    path.parent.mkdir(parents=True)
    return path


def urls(folder: Path, more: str = "") -> list[str | None]:
    targets = notify_targets.targets_of(command_launch(folder, COMMAND_JOB + more).job)
    return [target.url for target in targets if isinstance(target, UrlTarget)]


def warnings(folder: Path, target: str) -> list[str]:
    launch = command_launch(folder, f"{COMMAND_JOB}notify: [{{{target}}}]\n")
    return list(launch.plan.warnings)


def test_without_a_configuration_file_a_job_has_no_targets(tmp_path: Path, config: Path) -> None:
    assert not config.exists()
    assert urls(tmp_path) == []


def test_a_job_without_targets_has_those_of_the_user(tmp_path: Path, config: Path) -> None:
    config.write_text(OF_USER)
    assert urls(tmp_path) == ["https://127.0.0.1/user"]


@pytest.mark.parametrize(
    ("text", "expected"), [("[]", []), ("[{url: 'https://127.0.0.1/a'}]", ["https://127.0.0.1/a"])]
)
def test_targets_of_a_job_replace_those_of_the_user(
    tmp_path: Path, config: Path, text: str, expected: list[str]
) -> None:
    config.write_text(OF_USER)
    assert urls(tmp_path, f"notify: {text}\n") == expected


def test_a_target_that_is_listed_twice_is_one_target(tmp_path: Path) -> None:
    twice = "notify: [{url: 'https://127.0.0.1'}, {url: 'https://127.0.0.1'}]\n"
    assert urls(tmp_path, twice) == ["https://127.0.0.1"]


def test_a_wrong_configuration_file_is_an_error_with_its_line(tmp_path: Path, config: Path) -> None:
    config.write_text("notify:\n  - {ulr: 'https://127.0.0.1'}\n")
    with pytest.raises(ConfigError) as error:
        command_launch(tmp_path)
    assert f"{config}:2: notify.0.ulr: unknown key. Did you mean 'url'?" in error.value.lines


def test_a_user_without_a_home_has_no_configuration_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "")
    assert load_user_config().notify == ()


@pytest.mark.parametrize(
    ("target", "warning"),
    [
        ("url: 'https://no-such-host.invalid/a'", "the name no-such-host.invalid cannot be"),
        ("email: me@x.org, smtp: 'no-such-host.invalid:25'", "no-such-host.invalid cannot be"),
        ("command: [no-such-program]", "there is no such program"),
    ],
)
def test_a_target_that_cannot_be_reached_from_here_is_a_warning(
    tmp_path: Path, target: str, warning: str
) -> None:
    (found,) = warnings(tmp_path, target)
    assert found.startswith("notify: ") and warning in found and "/a" not in found


def test_a_secret_that_is_no_url_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "s3cret")
    (found,) = warnings(tmp_path, "url_secret: HOOK")
    assert found == "notify: the URL in HOOK is not a URL (https://...)"


@pytest.mark.parametrize(
    "target", ["url: 'https://127.0.0.1'", "email: me@x.org, smtp: 'localhost:25'", "command: [sh]"]
)
def test_a_target_that_can_be_reached_is_no_warning(tmp_path: Path, target: str) -> None:
    assert warnings(tmp_path, target) == []


def test_secrets_of_targets_are_needed_but_do_not_go_to_the_hosts(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("notify: [{url_secret: HOOK}]\n")
    monkeypatch.delenv("HOOK", raising=False)
    launch = command_launch(tmp_path, COMMAND_JOB + "secrets: [KEY]\n")
    assert job_secrets.names(launch.job) == ["KEY", "HOOK"]
    assert job_secrets.names_in_file(launch.job) == ["KEY"]
    (_, problem) = job_secrets.missing(launch.job)
    assert problem.startswith("notify: the environment variable HOOK is not set")
    assert problem.endswith("or remove it from the configuration file")
    monkeypatch.setenv("HOOK", "https://127.0.0.1/s3cret")
    assert job_secrets.values(launch.job) == {"HOOK": "https://127.0.0.1/s3cret"}
    assert "HOOK" not in launch.environment(0)
