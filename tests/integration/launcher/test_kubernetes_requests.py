"""What is requested from Kubernetes for a cluster; tests/e2e/kubernetes has runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.providers.kubernetes.manifest import new_name, token_secret
from tests.support.kubernetes.crd import LABEL, problems
from tests.support.kubernetes.requested import IMAGE, asked_for, group_of, pod_of


def test_rays_memory_monitor_is_off_in_the_pods_of_hosts() -> None:
    (container,) = pod_of(asked_for("v4-32"))["containers"]
    assert {"name": "RAY_memory_monitor_refresh_ms", "value": "0"} in container["env"]


def test_a_slice_is_one_replica_with_its_hosts_on_nodes_of_its_kind() -> None:
    made = asked_for("v4-32")
    group, pod = group_of(made), pod_of(made)
    assert (group["replicas"], group["numOfHosts"]) == (1, 4)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
    }
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert pod["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists"}]


def test_several_slices_are_as_many_replicas() -> None:
    made = asked_for("v5e-16", slices=3)
    assert (group_of(made)["replicas"], group_of(made)["numOfHosts"]) == (3, 4)
    assert pod_of(made)["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"


def test_gpu_hosts_come_one_by_one_with_all_their_gpus() -> None:
    made = asked_for("h100-16", cpu=96, memory="512Gi", node_selector={"pool": "h100"})
    assert (group_of(made)["replicas"], group_of(made)["numOfHosts"]) == (2, 1)
    resources = pod_of(made)["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "96", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert resources["requests"] == resources["limits"]
    assert pod_of(made)["nodeSelector"] == {"pool": "h100"}
    assert pod_of(made)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_the_head_places_nothing_and_its_dashboard_is_its_own() -> None:
    head = asked_for("v4-32")["spec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0", "dashboard-host": "127.0.0.1"}
    assert "nodeSelector" not in head["template"]["spec"]


CLASSES = {"normal": 0, "urgent": 5}


@pytest.mark.parametrize(
    ("priority", "expected"), [(-1, None), (0, "normal"), (4, "normal"), (7, "urgent")]
)
def test_a_priority_becomes_the_class_of_the_pods_or_of_kueue(
    priority: int, expected: str | None
) -> None:
    pods = asked_for("v4-16", priority=priority, priority_classes=CLASSES)
    assert pod_of(pods).get("priorityClassName") == expected
    queued = asked_for("v4-16", priority=priority, priority_classes=CLASSES, queue="team")
    assert queued["metadata"]["labels"].get("kueue.x-k8s.io/priority-class") == expected
    assert "priorityClassName" not in pod_of(queued)


def test_a_queue_is_named_and_lets_the_cluster_in() -> None:
    made = asked_for("v4-16", queue="team")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert made["spec"]["suspend"] is True
    assert "suspend" not in asked_for("v4-16")["spec"]


def test_pod_settings_of_cluster_file_apply_to_all_pods() -> None:
    made = asked_for("cpu", service_account="trainer", volume_claims={"/shared": "disk"})
    for template in (made["spec"]["headGroupSpec"]["template"], group_of(made)["template"]):
        pod = template["spec"]
        (container,) = pod["containers"]
        assert container["image"] == IMAGE
        assert pod["serviceAccountName"] == "trainer"
        assert container["volumeMounts"] == [{"name": "claim-0", "mountPath": "/shared"}]
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "disk"}
    assert pod_of(asked_for("v4-8", tolerations=["spot"]))["tolerations"][1]["key"] == "spot"


def test_the_token_is_in_the_secret_alone() -> None:
    secret, made = token_secret("slipway-a-1", "a-token", "uid-1"), asked_for("v4-16")
    (key,) = (key for key, value in secret["stringData"].items() if value == "a-token")
    for template in (made["spec"]["headGroupSpec"]["template"], group_of(made)["template"]):
        environment = {one["name"]: one for one in template["spec"]["containers"][0]["env"]}
        assert environment["RAY_AUTH_MODE"]["value"] == "token"
        reference = {"secretKeyRef": {"name": "slipway-a-1", "key": key}}
        assert environment["RAY_AUTH_TOKEN"] == {"name": "RAY_AUTH_TOKEN", "valueFrom": reference}


def test_the_secret_is_deleted_with_its_ray_cluster() -> None:
    (owner,) = token_secret("slipway-a-1", "a-token", "uid-1")["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "slipway-a-1", "uid": "uid-1"
    }  # fmt: skip


@given(st.text(max_size=80))
def test_a_name_is_one_that_kuberay_takes_and_is_new(run: str) -> None:
    made = asked_for("v4-8")
    made["metadata"]["name"] = new_name(run)
    assert problems(made) == [], LABEL
    assert new_name(run) != new_name(run)


def test_the_schema_refuses_what_the_server_would() -> None:
    made = asked_for("v4-8")
    group_of(made)["numHosts"] = 1
    made["metadata"]["name"] = "My_Run"
    assert len(problems(made)) == 2
