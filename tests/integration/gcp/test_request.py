"""What a cluster file asks Cloud TPU for, and what that costs, before anything is asked."""

from pathlib import Path

import pytest
from google.cloud import tpu_v2

from launcher.cluster.schema import Cluster, Gcp
from launcher.core.errors import HostError
from launcher.providers.gcp.prices import cost_line, limit_line
from launcher.providers.gcp.request import TpuRequest, labels, new_id, node_ids, request, wanted

pytestmark = pytest.mark.gcp

KEY = "ssh-ed25519 AAAA slipway"
LABELS = labels("/here/pod.yaml", "small")


def wanted_of(accelerator: str = "v4-32", slices: int = 1, **settings: object) -> TpuRequest:
    provider = Gcp.model_validate(
        {"kind": "gcp", "project": "mine", "zone": "us-central2-b", **settings}
    )
    ranges = {"min": slices, "max": slices}
    return wanted(
        Cluster.model_validate({"accelerator": accelerator, "slices": ranges, "provider": provider})
    )


def asked(accelerator: str = "v4-32", slices: int = 1, **settings: object) -> tpu_v2.QueuedResource:
    return request(wanted_of(accelerator, slices, **settings), "slipway-a", KEY, LABELS)


def test_one_slice_is_asked_for_by_name_with_the_key_that_lets_us_in():
    (spec,) = asked().tpu.node_spec
    assert spec.parent == "projects/mine/locations/us-central2-b"
    assert spec.node_id == "slipway-a"
    assert spec.node.accelerator_type == "v4-32"
    assert spec.node.metadata == {"ssh-keys": f"slipway:{KEY}"}
    assert spec.node.labels == LABELS


def test_several_slices_are_one_request_whose_nodes_are_numbered():
    (spec,) = asked("v5e-16", slices=2).tpu.node_spec
    assert spec.multislice_params.node_count == 2
    assert spec.multislice_params.node_id_prefix == "slipway-a"
    assert spec.node.accelerator_type == "v5litepod-16"
    assert node_ids("slipway-a", 2) == ["slipway-a-0", "slipway-a-1"]


@pytest.mark.parametrize(
    ("accelerator", "runtime_version"),
    [
        ("v4-8", "tpu-ubuntu2204-base"),
        ("v5e-4", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-4", "v2-alpha-tpuv6e"),
    ],
)
def test_the_runtime_version_is_that_of_the_generation(accelerator, runtime_version):
    assert wanted_of(accelerator).runtime_version == runtime_version


def test_a_runtime_version_that_is_named_counts():
    assert wanted_of("v4-8", runtime_version="mine").runtime_version == "mine"


def test_of_a_generation_that_this_api_does_not_have_it_must_be_named():
    with pytest.raises(HostError, match="runtime_version: v7x-8 has no default"):
        wanted_of("v7x-8")


def test_spot_and_reserved_and_on_demand_are_tiers_of_the_request():
    assert tpu_v2.QueuedResource.pb(asked(spot=True)).WhichOneof("tier") == "spot"
    assert tpu_v2.QueuedResource.pb(asked()).WhichOneof("tier") is None
    reserved = asked(reservation="ours")
    assert tpu_v2.QueuedResource.pb(reserved).WhichOneof("tier") == "guaranteed"
    assert reserved.reservation_name.endswith("/us-central2-b/reservations/ours")
    assert reserved.tpu.node_spec[0].node.scheduling_config.reserved


def test_network_service_account_labels_and_queue_limit_are_sent():
    resource = asked(
        network="net", subnetwork="sub", internal_ips=True, labels={"team": "a"},
        service_account="a@b", queue_timeout_min=90,
    )  # fmt: skip
    node = resource.tpu.node_spec[0].node
    assert (node.network_config.network, node.network_config.subnetwork) == ("net", "sub")
    assert not node.network_config.enable_external_ips
    assert node.labels == {"team": "a", **LABELS}
    assert node.service_account.email == "a@b"
    limit = tpu_v2.QueuedResource.pb(resource).queueing_policy.valid_until_duration
    assert limit.seconds == 5400


def test_a_name_says_which_run_it_is_for_and_is_never_the_same():
    first, second = new_id("My run/1"), new_id("My run/1")
    assert first.startswith("slipway-my-run-1-") and first != second
    assert len(new_id("x" * 200)) <= 63


def test_project_and_zone_that_are_not_said_are_those_of_gcloud(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    for name in ("CLOUDSDK_CORE_PROJECT", "CLOUDSDK_COMPUTE_ZONE", "CLOUDSDK_ACTIVE_CONFIG_NAME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "configurations").mkdir()
    (tmp_path / "active_config").write_text("work")
    text = "[core]\nproject = 50%off\n[compute]\nzone = us-east5-a\n"
    (tmp_path / "configurations" / "config_work").write_text(text)
    found = wanted_of(project=None, zone=None)
    assert (found.project, found.zone) == ("50%off", "us-east5-a")
    monkeypatch.setenv("CLOUDSDK_CORE_PROJECT", "other")
    assert wanted_of(project=None, zone=None).project == "other"


def test_all_missing_settings_are_reported_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT", raising=False)
    monkeypatch.delenv("CLOUDSDK_COMPUTE_ZONE", raising=False)
    with pytest.raises(HostError) as caught:
        wanted_of(project=None, zone=None)
    assert "project: set provider.project" in str(caught.value)
    assert "zone: set provider.zone" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "v4-32 (on demand) in us-central2-b, project mine: about $51.52 an hour, 16 chips at "
         "$3.22 (an estimate: the list price on demand in us-central2, 2026-11)"),
        ({"spot": True}, "v4-32 (spot) in us-central2-b, project mine: about $51.52 an hour, 16 "
         "chips at $3.22 (an estimate: the list price on demand in us-central2, 2026-11, spot "
         "is cheaper)"),
        ({"price_per_chip_hour": 0.5}, "v4-32 (on demand) in us-central2-b, project mine: about "
         "$8.00 an hour, 16 chips at $0.50 (by provider.price_per_chip_hour)"),
        ({"accelerator": "v3-8"}, "v3-8 (on demand) in us-central2-b, project mine: no price is "
         "known (say provider.price_per_chip_hour)"),
    ],
)  # fmt: skip
def test_what_it_costs_is_said_with_where_that_is_from(settings, line):
    assert cost_line(wanted_of(**settings)) == line


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "no limit in time: provider.max_hours sets one"),
        ({"max_hours": 2}, "given back after 2 h, about $103.04 at most (provider.max_hours)"),
        ({"max_hours": 2, "accelerator": "v3-8"}, "given back after 2 h (provider.max_hours)"),
    ],
)  # fmt: skip
def test_the_limit_in_time_is_said_with_what_it_costs(settings, line):
    assert limit_line(wanted_of(**settings)) == line
