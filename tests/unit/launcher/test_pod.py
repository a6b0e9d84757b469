"""The slices of one run: what is waited for, for how long, and how their hosts are named."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.core import wait
from launcher.core.errors import HostError, RefusedError
from launcher.providers.gcp import pod
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.slice_records import STATE, is_recorded
from tests.support.tpu_slices import MemoryApi, cluster_file, make_pod

START_S = 1e6


class Clock:
    """The only clock of the module; sleeping moves it on."""

    def __init__(self) -> None:
        self.now = START_S

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class PlayedApi(MemoryApi):
    """A queued resource that is ACTIVE, and whose slices are ready from some time on."""

    clock: Clock
    ready_after_s = 0.0
    refused = False
    gone: tuple[str, ...] = ()
    """Ends of the names of slices that are not there."""
    when_ready = "READY"

    def state(self, name: str) -> tuple[str, str]:
        if self.refused:
            raise RefusedError("Cloud TPU: PermissionDenied")
        return super().state(name)

    def node(self, name: str) -> Any:
        if name.endswith(self.gone):
            return None
        is_ready = self.clock.now >= START_S + self.ready_after_s
        number = 1 + int(name.endswith("-1"))
        endpoints = [
            SimpleNamespace(
                ip_address=f"10.0.{number}.{worker}",
                access_config=SimpleNamespace(external_ip=f"34.0.{number}.{worker}"),
            )
            for worker in (1, 2)
        ]
        state = SimpleNamespace(name=self.when_ready if is_ready else "CREATING")
        return SimpleNamespace(state=state, network_endpoints=endpoints)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pod, "time", clock)
    monkeypatch.setattr(wait, "time", clock)
    monkeypatch.setattr(pod, "POLL_INTERVAL_S", 1.0)
    return clock


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> PlayedApi:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = PlayedApi()
    found.clock = clock
    monkeypatch.setattr(pod, "Api", found.at)
    return found


def made(api: MemoryApi, folder: Path, more: str = "", **note: Any) -> TpuSliceRequest:
    """One that the API holds; `more`: keys of its provider, after a comma."""
    found = make_pod(cluster_file(folder, more=more), folder / "runs" / "small", **note)
    api.held[found.note.resource_id] = ""
    return found


@pytest.mark.parametrize(("held_s", "is_over"), [(7200.0, False), (7200.5, True)])
def test_the_time_of_slices_is_over_after_max_hours(
    api: PlayedApi, clock: Clock, tmp_path: Path, held_s: float, is_over: bool
) -> None:
    found = made(api, tmp_path, ", max_hours: 2", active_at=START_S)
    clock.now = START_S + held_s
    assert found.is_over_time == is_over


def test_slice_time_limit_needs_limit_and_active_slices(
    api: PlayedApi, clock: Clock, tmp_path: Path
) -> None:
    unlimited = made(api, tmp_path / "one", active_at=START_S)
    waiting = made(api, tmp_path / "two", ", max_hours: 2")
    clock.now = START_S + 1e6
    assert not unlimited.is_over_time and not waiting.is_over_time


def test_a_wait_is_reported_at_once_and_then_every_half_minute(
    api: PlayedApi, tmp_path: Path
) -> None:
    api.ready_after_s, said = 65.0, []
    made(api, tmp_path).wait(said.append)
    assert [line.partition("(ACTIVE, ")[2] for line in said] == ["0.0 s)", "30.0 s)", "1:00)"]
    assert all("the hosts are starting" in line for line in said)


def test_what_the_api_has_shown_is_written_down(
    api: PlayedApi, clock: Clock, tmp_path: Path
) -> None:
    found = made(api, tmp_path)
    clock.now += 5.0
    found.wait(lambda text: None)
    assert found.note.is_seen and found.note.active_at == START_S + 5.0
    again = TpuSliceRequest(found.folder, found.note)
    clock.now += 5.0
    again.wait(lambda text: None)
    assert again.note.active_at == START_S + 5.0


def test_a_resource_that_was_never_there_is_not_seen(api: PlayedApi, tmp_path: Path) -> None:
    found = made(api, tmp_path)
    api.held.clear()
    with pytest.raises(HostError, match=r"did not grant v4-16 .*: GONE\n"):
        found.wait(lambda text: None)
    assert not found.note.is_seen


def test_slices_with_unready_hosts_are_deleted_at_timeout_only(
    api: PlayedApi, clock: Clock, tmp_path: Path
) -> None:
    api.ready_after_s = 1e6
    found = made(api, tmp_path, ", unreachable_minutes: 2")
    with pytest.raises(HostError, match="active for 2 minutes"):
        found.wait(lambda text: None)
    assert clock.now == START_S + 121.0


def test_an_api_without_an_answer_is_asked_again_for_ten_minutes(
    api: PlayedApi, clock: Clock, tmp_path: Path
) -> None:
    api.failures = 10_000
    with pytest.raises(HostError, match="ServiceUnavailable"):
        made(api, tmp_path).wait(lambda text: None)
    assert clock.now == START_S + 601.0


def test_a_refusal_is_not_asked_again(api: PlayedApi, clock: Clock, tmp_path: Path) -> None:
    api.refused = True
    with pytest.raises(RefusedError):
        made(api, tmp_path).wait(lambda text: None)
    assert clock.now == START_S


@pytest.mark.parametrize(("more", "net"), [("", "34"), (", internal_ips: true", "10")])
def test_hosts_are_named_by_worker_and_use_network_address(
    api: PlayedApi, tmp_path: Path, more: str, net: str
) -> None:
    settings = made(api, tmp_path, more).wait(lambda text: None)
    assert settings.hosts == ["worker-0", "worker-1"]
    config = Path(settings.config or "").read_text()
    assert f"Host worker-1\n  HostName {net}.0.1.2\n" in config


def made_of_two_slices(api: MemoryApi, folder: Path) -> TpuSliceRequest:
    file = cluster_file(folder)
    file.write_text(file.read_text() + "slices: 2\n")
    found = make_pod(file, folder / "runs" / "small")
    api.held[found.note.resource_id] = ""
    return found


def test_hosts_of_several_slices_are_named_by_their_slice_too(
    api: PlayedApi, tmp_path: Path
) -> None:
    settings = made_of_two_slices(api, tmp_path).wait(lambda text: None)
    assert settings.hosts == [
        "slice-0-worker-0", "slice-0-worker-1", "slice-1-worker-0", "slice-1-worker-1"
    ]  # fmt: skip
    assert "Host slice-1-worker-0\n  HostName 34.0.2.1\n" in Path(settings.config or "").read_text()


def test_slices_are_wanted_until_launch_down_says_otherwise(api: PlayedApi, tmp_path: Path) -> None:
    found = made(api, tmp_path)
    assert found.is_wanted
    (found.folder / STATE).write_text("")
    assert found.is_wanted, "a torn note says nothing"
    found.set("ending")
    assert not found.is_wanted
    with pytest.raises(HostError, match="`launch down` has released"):
        found.set("running")
    found.forget()
    assert not found.is_wanted


def test_a_key_without_its_public_half_is_refused_before_anything_is_asked(
    api: PlayedApi, tmp_path: Path
) -> None:
    found = made(api, tmp_path, f", ssh_key: {tmp_path / 'absent'}")
    with pytest.raises(HostError, match=r"provider\.ssh_key: its public key cannot be read"):
        found.send_request()
    assert not is_recorded(found.folder) and not api.late


@pytest.mark.parametrize(
    ("gone", "state", "is_lost"),
    [((), "READY", False), (("-1",), "READY", True), ((), "PREEMPTED", True)],
)
def test_slices_are_lost_when_one_is_not_there_or_preempted(
    api: PlayedApi, tmp_path: Path, gone: tuple[str, ...], state: str, is_lost: bool
) -> None:
    api.gone, api.when_ready = gone, state
    assert made_of_two_slices(api, tmp_path).is_lost() == is_lost


def test_slices_whose_resource_is_not_active_are_lost(api: PlayedApi, tmp_path: Path) -> None:
    api.lost = True
    assert made(api, tmp_path).is_lost()


def test_hosts_use_key_of_cluster_file_or_pod(api: PlayedApi, tmp_path: Path) -> None:
    own = made(api, tmp_path / "one")
    given = made(api, tmp_path / "two", ", ssh_key: /keys/mine")
    assert own.wait(lambda text: None).ssh_key == str(own.folder / "key")
    assert given.wait(lambda text: None).ssh_key == "/keys/mine"


def test_slices_are_given_back_once_and_their_folder_may_be_removed_twice(
    api: PlayedApi, tmp_path: Path
) -> None:
    found = made(api, tmp_path)
    assert found.release() is True
    assert found.release() is True
    found.forget()
    assert api.deleted == [found.note.resource_id]


def test_slices_that_never_appear_are_looked_for_for_ten_minutes(
    api: PlayedApi, clock: Clock, tmp_path: Path
) -> None:
    found = made(api, tmp_path)
    api.held.clear()
    found.release_late()
    assert clock.now == START_S + 600.0
    assert not is_recorded(found.folder)


@pytest.mark.parametrize("program", [None, "#!/bin/sh\nexit 1\n"], ids=["absent", "fails"])
def test_without_a_key_for_the_hosts_nothing_is_written_down(
    api: PlayedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    path = tmp_path / "bin" / "ssh-keygen"
    path.parent.mkdir()
    if program:
        path.write_text(program)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    found = TpuSliceRequest.of(
        find_cluster(str(cluster_file(tmp_path))).value,
        ClusterRef(name="pod"), tmp_path / "runs" / "small", losses=0,
    )  # fmt: skip
    with pytest.raises(HostError, match="ssh-keygen cannot create"):
        found.write_record()
    assert not found.folder.exists()


def test_slices_deleted_by_other_process_are_not_deleted_or_recorded(
    api: PlayedApi, tmp_path: Path
) -> None:
    found = made(api, tmp_path)
    with found.ending() as is_ours:
        assert is_ours
    found.forget()
    with found.ending() as is_ours:
        assert not is_ours
    with pytest.raises(HostError, match="`launch down` has released"):
        found.set("ending")
    assert not found.folder.exists()
