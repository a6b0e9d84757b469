"""Slices that are asked for, waited for and given back; and the ways in which none are had."""

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.core.errors import HostError
from launcher.providers.gcp import client, pod
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.slice_records import is_recorded, list_slices
from tests.support.tpu_api import StandIn
from tests.support.tpu_api_fixtures import cluster_file

pytestmark = pytest.mark.gcp


@pytest.fixture
def a_pod(cloud: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TpuSliceRequest:
    """Written down, and not asked for yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(client, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(pod, "POLL_INTERVAL_S", 0.01)
    cluster = find_cluster(str(cluster_file(tmp_path, cloud))).value
    found = TpuSliceRequest.of(
        cluster, ClusterRef(name="pod"), tmp_path / "runs" / "small", losses=0
    )
    found.write_record()
    return found


def test_it_is_written_down_before_it_is_asked_for(a_pod: TpuSliceRequest, cloud: StandIn) -> None:
    ((folder, note),) = list_slices()
    assert (folder, note.resource_id) == (a_pod.folder, a_pod.note.resource_id)
    assert not cloud.asked


def test_its_hosts_are_reached_with_a_key_that_nobody_else_has(
    a_pod: TpuSliceRequest, cloud: StandIn
) -> None:
    told: list[str] = []
    a_pod.send_request()
    settings = a_pod.wait(told.append)
    assert settings.hosts == ["worker-0", "worker-1"]
    config = Path(settings.config or "").read_text()
    assert "Host worker-1\n  HostName 10.0.0.2\n" in config
    assert (a_pod.folder / "key").stat().st_mode & 0o077 == 0
    (request,) = cloud.asked
    keys = request.queued_resource.tpu.node_spec[0].node.metadata["ssh-keys"]
    assert keys == f"slipway:{(a_pod.folder / 'key.pub').read_text().strip()}"
    assert [line.split("(")[-1].split(",")[0] for line in told] == [
        "WAITING_FOR_RESOURCES", "PROVISIONING"
    ]  # fmt: skip


def test_given_back_it_is_deleted_and_forgotten(a_pod: TpuSliceRequest, cloud: StandIn) -> None:
    a_pod.send_request()
    a_pod.wait(lambda text: None)
    assert not a_pod.is_lost()
    a_pod.release()
    assert cloud.deleted == [a_pod.note.resource_id]
    assert not a_pod.folder.exists() and not list(list_slices())
    a_pod.release()  # by two at once: nothing more to do


def test_a_resource_that_is_made_after_the_client_gave_up_is_given_back(
    a_pod: TpuSliceRequest, cloud: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CALL_TIMEOUT_S", 0.3)
    create, may_make = cloud.create, threading.Event()

    def slow(request: Any, context: grpc.ServicerContext) -> Any:
        may_make.wait(60.0)
        return create(request, context)

    monkeypatch.setattr(cloud, "create", slow)
    with pytest.raises(HostError, match=r"DeadlineExceeded(.|\n)*keep the machine running"):
        a_pod.send_request()
    assert not a_pod.release()
    ((_, note),) = list_slices()
    assert note.stage == "ending" and not cloud.deleted
    looks = threading.Thread(target=a_pod.release_late, daemon=True)
    looks.start()
    may_make.set()
    looks.join(60.0)
    assert cloud.deleted == [a_pod.note.resource_id] and not cloud.held
    assert not is_recorded(a_pod.folder)


def test_slices_are_found_by_the_label_of_their_cluster_alone(
    a_pod: TpuSliceRequest, cloud: StandIn, tmp_path: Path
) -> None:
    a_pod.send_request()
    cluster, name = a_pod.note.cluster, a_pod.note.resource_id
    assert pod.labelled(cluster, a_pod.note.cluster_key) == [name]
    assert pod.labelled(cluster, str(tmp_path / "other.yaml")) == []
    pod.forget(a_pod.folder)
    pod.release_unrecorded(cluster, name)
    assert cloud.deleted == [name]


def test_project_of_slices_stays_when_gcloud_is_reconfigured(
    cloud: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = cluster_file(tmp_path, cloud)
    path.write_text(path.read_text().replace("  project: mine\n", ""))
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "first")
    TpuSliceRequest.of(
        find_cluster(str(path)).value, ClusterRef(name="pod"), tmp_path, losses=0
    ).write_record()
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "second")
    ((folder, note),) = list_slices()
    assert TpuSliceRequest(folder, note).wanted.project == "first"


def test_active_slices_whose_hosts_never_come_up_are_given_up(
    a_pod: TpuSliceRequest, cloud: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = a_pod.note.cluster.provider.model_copy(update={"unreachable_minutes": 0.001})
    cluster = a_pod.note.cluster.model_copy(update={"provider": provider})
    doubtful = TpuSliceRequest(a_pod.folder, a_pod.note.model_copy(update={"cluster": cluster}))
    doubtful.send_request()
    monkeypatch.setattr(doubtful, "_addresses", list)
    with pytest.raises(HostError, match=r"active for 0\.001 minutes, but its hosts are not"):
        doubtful.wait(lambda text: None)


def test_one_that_is_preempted_is_lost(a_pod: TpuSliceRequest, cloud: StandIn) -> None:
    a_pod.send_request()
    a_pod.wait(lambda text: None)
    cloud.preempt()
    assert a_pod.is_lost()


@pytest.mark.parametrize(
    ("status", "said", "remedy"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota 'TPUV4sPodPerProject' exhausted. Limit 0",
         "IAM & Admin > Quotas"),
        (grpc.StatusCode.PERMISSION_DENIED, "Permission 'tpu.nodes.create' denied",
         "gcloud services enable tpu.googleapis.com"),
        (grpc.StatusCode.INVALID_ARGUMENT, "no such accelerator",
         "gcloud compute tpus accelerator-types list"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_was_asked_where_what_came_back_and_what_to_do(
    status: grpc.StatusCode, said: str, remedy: str, a_pod: TpuSliceRequest, cloud: StandIn
) -> None:
    cloud.refuse_with = (status, said)
    with pytest.raises(HostError) as caught:
        a_pod.send_request()
    message = str(caught.value)
    assert "v4-16 (on demand) in us-central2-b, project mine" in message
    assert said in message and remedy in message
    assert not list(list_slices())


def test_an_answer_that_does_not_come_leaves_it_to_be_given_back(
    a_pod: TpuSliceRequest, cloud: StandIn
) -> None:
    cloud.refuse_with = (grpc.StatusCode.UNAVAILABLE, "try later")
    with pytest.raises(HostError, match="check that this machine can reach the API"):
        a_pod.send_request()
    assert list(list_slices())


def test_without_capacity_in_time_the_wait_ends(a_pod: TpuSliceRequest, cloud: StandIn) -> None:
    cloud.fail_with = "valid_until expired"
    a_pod.send_request()
    with pytest.raises(HostError, match="FAILED: valid_until expired\n  Request another zone"):
        a_pod.wait(lambda text: None)


def test_a_place_in_the_queue_is_kept_while_the_api_gives_no_answer(
    a_pod: TpuSliceRequest, cloud: StandIn
) -> None:
    a_pod.send_request()
    cloud.silent = 2
    assert a_pod.wait(lambda text: None).hosts == ["worker-0", "worker-1"]


def test_hosts_that_are_not_those_of_the_plan_are_refused(
    a_pod: TpuSliceRequest, cloud: StandIn
) -> None:
    cloud.free = [0]
    a_pod.send_request()
    with pytest.raises(HostError, match="1 hosts, but the plan expects 2 per slice"):
        a_pod.wait(lambda text: None)


def test_without_credentials_it_says_how_to_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: StandIn
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    cluster = find_cluster(str(cluster_file(tmp_path, cloud))).value
    real = cluster.provider.model_copy(update={"endpoint": None})
    cluster = cluster.model_copy(update={"provider": real})
    with pytest.raises(HostError, match="gcloud auth application-default login"):
        TpuSliceRequest.of(cluster, ClusterRef(name="pod"), tmp_path, losses=0)
