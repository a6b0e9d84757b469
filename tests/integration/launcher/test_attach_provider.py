"""What is told of a Ray cluster that cannot be joined, where no Ray is needed to know it."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cluster.schema import Attach
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.exit_codes import BAD_USAGE
from launcher.providers.attach import provider as attach
from launcher.providers.ray import existing_cluster, raylets
from launcher.providers.ray.existing_cluster import Probe
from tests.support.cli import launch

RAY = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def _nothing_of_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in RAY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of somebody who listens and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def settings(address: str, token_path: Path | None = None) -> Attach:
    return Attach(kind="attach", address=address, token_path=token_path and str(token_path))


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_address_without_listener_is_reported_with_remedy() -> None:
    address = unused_address()
    with pytest.raises(HostError, match=rf"no response from {address}.*ray start --head"):
        attach.check(settings(address))


def test_auto_takes_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", unused_address())
    with pytest.raises(HostError, match="no response from 127"):
        attach.check(settings("auto"))


def test_invalid_address_in_environment_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(HostError, match="RAY_ADDRESS: expected HOST:PORT"):
        attach.check(settings("auto"))


def test_auto_takes_the_cluster_whose_raylet_runs_the_command() -> None:
    """A stand-in for a raylet: this Python with its name and its flag."""
    look = "from launcher.providers.attach.provider import _address_found as at; print(at())"
    command = ["raylet", "-c", f"import subprocess; subprocess.run({[sys.executable, '-c', look]})"]
    ran = subprocess.run(
        [*command, "--gcs-address=10.0.0.1:6379"],
        executable=sys.executable,
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "10.0.0.1:6379\n", ran.stderr


def test_auto_names_the_clusters_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raylets, "of_this_machine", lambda flag: {"10.0.0.1:6379", "10.0.0.2:6379"})
    with pytest.raises(HostError, match=r"several .* 10\.0\.0\.1:6379, 10\.0\.0\.2:6379"):
        attach.check(settings("auto"))


def test_auto_without_any_ray_says_how_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raylets, "of_this_machine", lambda flag: set())
    with pytest.raises(HostError, match=r"no Ray runs on this machine.*ray start --head"):
        attach.check(settings("auto"))


def test_unreadable_token_is_reported_with_key(silent: str, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"provider\.token_path: .*No such file"):
        attach.check(settings(silent, tmp_path / "no-token"))


def test_empty_token_is_reported(silent: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(HostError, match="is empty"):
        attach.check(settings(silent, tmp_path / "token"))


def test_token_from_ray_variable_is_reported_by_variable_name(
    silent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "no-token"))
    with pytest.raises(HostError, match="RAY_AUTH_TOKEN_PATH: the token cannot be read"):
        attach.check(settings(silent))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a" * 64)
    return path


def test_a_job_with_secrets_is_refused_where_the_cluster_has_no_token(
    silent: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("{name: any, command: ['true'], secrets: [HOME]}")
    provider = f"{{kind: attach, address: '{silent}'}}"
    (tmp_path / "open.yaml").write_text(
        f"accelerator: cpu\nhosts: 1\ndevices_per_host: 1\nprovider: {provider}\n"
    )
    refused = launch(tmp_path, "-c", "open.yaml", "job.yaml")
    assert refused.returncode == BAD_USAGE, refused.stderr
    assert f"secrets: HOME: the Ray cluster at {silent} has no token" in refused.stderr
    assert "provider.token_path" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_a_cluster_that_lets_anyone_in_is_open_whatever_token_is_named(
    silent: str, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probe, "lets_in", True)
    assert attach.is_open(settings(silent, token))


def test_a_cluster_that_refuses_strangers_is_not_open(
    silent: str, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing_cluster, "PROBE_TIMEOUT_S", 0.5)
    assert not attach.is_open(settings(silent, token))


def test_wait_for_listener_other_than_ray_ends(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing_cluster, "PROBE_TIMEOUT_S", 0.5)
    with pytest.raises(HostError, match="Check that the address is a Ray head's"):
        attach.join(settings(silent), Listener())
