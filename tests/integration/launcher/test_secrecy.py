"""Tokens, keys and secrets stay where they belong."""

import os
from pathlib import Path

import pytest

from launcher.cluster.schema import Ssh
from launcher.providers.ray.workspace import write_token
from launcher.providers.ssh.connection import Host
from tests.support.cli import launch

SECRET = "5ecret-value"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_host_cannot_use_the_agent_or_the_display_of_this_machine(terminal: bool) -> None:
    settings = Ssh(kind="ssh", hosts=["head"], proxy_jump="gate", user="me", ssh_key="key")
    command = Host("head", settings).ssh_command("true", terminal=terminal)
    assert {"ForwardAgent=no", "ForwardX11=no", "BatchMode=yes"} <= set(command)
    assert not {"-A", "-X", "-Y", "ForwardAgent=yes", "ForwardX11=yes"} & set(command)


def test_a_token_is_readable_by_its_user_only_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = write_token(tmp_path, "token")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("words", [(), ("-o", "json")])
def test_a_plan_shows_the_name_of_a_secret_and_not_its_value(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "job.yaml").write_text("{name: any, command: ['true'], secrets: [A_SECRET]}")
    planned = launch(tmp_path, "plan", "job.yaml", *words, environment={"A_SECRET": SECRET})
    assert planned.returncode == 0, planned.stderr
    assert "A_SECRET" in planned.stdout
    assert "(secret)" in planned.stdout
    assert SECRET not in planned.stdout + planned.stderr
