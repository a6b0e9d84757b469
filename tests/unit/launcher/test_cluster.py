"""Cluster files: the ones that ship, and what a person reads when one is wrong."""

from pathlib import Path

import pytest

from launcher.cluster.schema import (
    Attach,
    Cluster,
    Local,
    cluster_key,
    find_cluster,
    known_clusters,
    with_spares,
)
from trainer.contract.config.loader import ConfigError, Loaded, load

# Name: platform, slices, hosts per slice, devices per host, topology.
SHIPPED = {
    "gpu-h100-16": ("gpu", 1, 2, 8, None),
    "local": ("cpu", 1, 1, 2, None),
    "tpu-2x-v5e-16": ("tpu", 2, 4, 4, (4, 4)),
    "tpu-v4-32": ("tpu", 1, 4, 4, (2, 2, 4)),
    "tpu-v4-8": ("tpu", 1, 1, 4, (2, 2, 1)),
    "tpu-v5e-16": ("tpu", 1, 4, 4, (4, 4)),
    "tpu-v5p-64": ("tpu", 1, 8, 4, (2, 4, 4)),
    "tpu-v6e-256": ("tpu", 1, 64, 4, (16, 16)),
}

ELASTIC = (
    "{accelerator: cpu, hosts: {min: 2, max: 4}, devices_per_host: 1, provider: {kind: local}}"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cluster(text: str) -> Loaded[Cluster]:
    Path("c.yaml").write_text(text)
    return find_cluster("c.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        cluster(text)
    return caught.value.lines


def test_the_clusters_that_ship_are_these(folder):
    assert known_clusters() == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_cluster_that_ships_is_the_world_that_its_name_says(name, folder):
    world = find_cluster(name).value.world(simulated=True)
    found = (world.platform, world.slices, world.hosts_per_slice, world.devices_per_host)
    assert (*found, world.topology) == SHIPPED[name]
    assert world.simulated


@pytest.mark.parametrize("address", ["auto", "head:6379"])
def test_a_running_ray_cluster_is_named_by_its_head(address, folder):
    found = cluster(f"accelerator: h100-16\nprovider: {{kind: attach, address: '{address}'}}\n")
    assert isinstance(found.value.provider, Attach)
    assert found.value.provider.address == address


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "head:port", ":6379", "head:0"])
def test_what_is_no_address_of_a_head_is_refused(address, folder):
    text = f"accelerator: h100-16\nprovider: {{kind: attach, address: '{address}'}}\n"
    (problem,) = problems(text)
    assert problem.startswith("c.yaml:2: provider.address: expected host:port")


def test_a_cluster_file_here_goes_before_one_that_ships(folder):
    (folder / "clusters").mkdir()
    (folder / "clusters/local.yaml").write_text(
        "{accelerator: cpu, hosts: 3, devices_per_host: 1, provider: {kind: local}}"
    )
    assert find_cluster("local").value.world(simulated=False).processes == 3


def test_a_path_is_read_as_a_path_and_keys_are_found_in_it(folder):
    found = cluster("accelerator: v4-32\nprovider: {kind: gcp}\n")
    assert str(found.where("accelerator")) == "c.yaml:1"


def test_unknown_cluster_is_reported_with_known_and_nearest(folder):
    with pytest.raises(ConfigError) as caught:
        find_cluster("tpu-v4-33")
    (problem,) = caught.value.lines
    assert "unknown cluster" in problem
    assert ", ".join(sorted(SHIPPED)) in problem
    assert "Did you mean 'tpu-v4-32'?" in problem
    assert problem.endswith("v4-33 does not exist. The nearest sizes: v4-32 or v4-64.")


@pytest.mark.parametrize(("name", "hosts"), [("v5p-128", 16), ("tpu-v5p-128", 16), ("h200-16", 2)])
def test_any_accelerator_is_a_cluster_by_its_name(name, hosts, folder):
    world = find_cluster(name).value.world(simulated=True)
    assert world.processes == hosts


@pytest.mark.parametrize("name", ["", ".", "no-such", "a/b", "x.yaml", "\0", "clusters"])
def test_whatever_is_no_cluster_is_a_config_error(name, folder):
    with pytest.raises(ConfigError):
        find_cluster(name)


def test_all_problems_of_file_are_reported_at_once(folder):
    text = "accelerator: v4-30\nhosts: 0\nslice: 2\nprovider: {kind: locl}\n"
    assert problems(text) == [
        "c.yaml:1: accelerator: v4-30 does not exist. The nearest sizes: v4-16 or v4-32",
        "c.yaml:2: hosts: expected a whole number of at least 1, or {min: 2, max: 4}, found 0",
        "c.yaml:3: slice: unknown key. Did you mean 'slices'?",
        "c.yaml:4: provider.kind: 'locl' is not one of local, attach, ssh, gcp, kubernetes, slurm."
        " Did you mean 'local'?",
    ]


def test_a_cpu_must_say_hosts_and_devices(folder):
    assert problems("accelerator: cpu\nprovider: {kind: local}\n") == [
        "c.yaml: hosts: missing; required with accelerator: cpu",
        "c.yaml: devices_per_host: missing; required with accelerator: cpu",
    ]


def test_hosts_that_do_not_fit_the_accelerator_are_refused(folder):
    assert problems("accelerator: v4-32\nhosts: 3\nprovider: {kind: local}\n") == [
        "c.yaml:2: hosts: v4-32 has 4 hosts x 4 devices, not 3 hosts"
    ]


def test_a_key_of_another_provider_is_unknown(folder):
    assert problems("accelerator: v4-8\nprovider: {kind: local, zone: x}\n") == [
        "c.yaml:2: provider.zone: unknown key"
    ]


def test_what_a_provider_and_its_hosts_must_be_is_said_once(folder):
    assert problems("accelerator: v4-8\nprovider: local\n") == [
        "c.yaml:2: provider: expected a section (key: value), found 'local'"
    ]
    assert problems("accelerator: v4-8\nprovider: {kind: ssh, hosts: []}\n") == [
        "c.yaml:2: provider.hosts: expected a list with at least 1 value, found an empty list"
    ]


def test_a_provider_without_a_kind_lists_the_kinds(folder):
    assert problems("accelerator: v4-8\nprovider: {}\n") == [
        "c.yaml: provider.kind: missing; one of local, attach, ssh, gcp, kubernetes, slurm"
    ]


def test_a_host_that_differs_is_named_by_number(folder):
    local = "{kind: local, host_env: {1: {A: b}}}"
    found = cluster(f"accelerator: v4-16\nprovider: {local}\n")
    assert isinstance(found.value.provider, Local)
    assert found.value.provider.host_env == {1: {"A": "b"}}
    assert problems(f"accelerator: v4-16\nprovider: {local.replace('1', 'one')}\n") == [
        "c.yaml:2: provider.host_env.one: expected a whole number of at least 0 as the key"
    ]


def test_cloud_tpu_without_tpus_is_refused_with_known_ones(folder):
    text = "accelerator: %s\nprovider: {kind: gcp%s}\n"
    assert cluster(text % ("v4-32", "")).value
    assert cluster(text % ("cpu\nhosts: 2\ndevices_per_host: 1", ", accelerator_type: v4-16"))
    assert problems(text % ("h100-16", "")) == [
        "c.yaml:2: provider: accelerator_type: missing; h100-16 is not a TPU"
    ]


def test_a_slice_is_spot_or_reserved(folder):
    text = "accelerator: v4-32\nprovider: {kind: gcp, spot: true, reservation: ours}\n"
    assert problems(text) == [
        "c.yaml:2: provider.reservation: cannot be combined with spot: true. Remove one"
    ]


def test_a_cluster_of_pods_must_say_their_image(folder):
    text = "accelerator: h100-16\nprovider: {kind: kubernetes, namespace: jobs%s}\n"
    assert cluster(text % ", image: mine").value
    assert problems(text % "") == ["c.yaml: provider.image: missing"]


def test_a_generation_of_tpu_that_gke_has_not_is_refused(folder):
    text = "accelerator: v2-32\nprovider: {kind: kubernetes, image: mine}\n"
    known = "v4, v5e, v5p, v6e, v7x"
    assert problems(text) == [
        f"c.yaml:1: accelerator: GKE has no nodes of TPU v2; it has those of {known}"
    ]


def test_hosts_reached_by_ssh_are_as_many_as_the_accelerator_has(folder):
    text = "accelerator: h100-16\nprovider: {kind: ssh, hosts: [%s], user: me}\n"
    assert cluster(text % "a, b").value
    assert problems(text % "a, b, c") == [
        "c.yaml:2: provider: hosts: 3 are listed, but h100-16 needs 2"
    ]


def test_a_spare_is_one_more_host_reached_by_ssh(folder):
    text = "accelerator: h100-16\nspares: 1\nprovider: {kind: ssh, hosts: [%s]}\n"
    assert cluster(text % "a, b, c").value
    assert problems(text % "a, b") == [
        "c.yaml:3: provider: hosts: 2 are listed, but h100-16 needs 3 with 1 spare"
    ]


def test_slices_that_are_rented_have_no_spares(folder):
    text = "accelerator: v4-32\nspares: 1\nprovider: {kind: gcp}\n"
    assert problems(text) == ["c.yaml:2: spares: must be 0 where slices are requested for each run"]


@pytest.mark.parametrize(
    ("cluster_text", "slices", "hosts"),
    [
        ("accelerator: cpu, hosts: 2, devices_per_host: 1", 1, 3),
        ("accelerator: h100-16", 1, 3),
        ("accelerator: h100-16, slices: 2", 3, 6),
        ("accelerator: v4-32", 2, 8),
    ],
)
def test_spares_are_hosts_or_slices_where_these_are_lost_as_a_whole(
    cluster_text, slices, hosts, folder
):
    found = cluster(f"{{{cluster_text}, provider: {{kind: local}}}}").value
    world = with_spares(found.world(simulated=True), 1)
    assert (world.slices, world.processes) == (slices, hosts)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("a, a", "duplicate hosts: a"),
        ("a, -oProxyCommand=x", "host names cannot begin with '-': -oProxyCommand=x"),
    ],
)
def test_names_that_ssh_would_not_take_as_hosts(hosts, message, folder):
    text = f"accelerator: h100-16\nprovider: {{kind: ssh, hosts: [{hosts}]}}\n"
    assert problems(text) == [f"c.yaml:2: provider.hosts: {message}"]


def test_the_cluster_file_decides_where_the_field_disagrees(folder):
    world = cluster("accelerator: v6e-8\nhosts: 2\nprovider: {kind: gcp}\n").value.world(True)
    assert (world.hosts_per_slice, world.devices_per_host) == (2, 4)


def test_fewer_simulated_hosts_are_a_smaller_slice_of_the_same_hosts(folder):
    world = find_cluster("tpu-v6e-256").value.world(simulated=True, simulate_hosts=4)
    assert (world.accelerator, world.processes, world.topology) == ("v6e-16", 4, (4, 4))


def test_simulated_hosts_are_shared_by_the_slices(folder):
    world = find_cluster("tpu-2x-v5e-16").value.world(simulated=True, simulate_hosts=2)
    assert (world.slices, world.hosts_per_slice, world.accelerator) == (2, 1, "v5e-4")


@pytest.mark.parametrize(
    ("name", "hosts", "message"),
    [
        ("tpu-v4-32", 3, "The nearest host counts: 2 or 4"),
        ("tpu-2x-v5e-16", 3, "do not divide into 2 slices. Take 2 or 4"),
    ],
)
def test_hosts_that_no_slice_has_are_refused_with_the_nearest(name, hosts, message, folder):
    with pytest.raises(ValueError, match=message):
        find_cluster(name).value.world(simulated=True, simulate_hosts=hosts)


def test_every_cluster_file_that_ships_says_what_it_is(folder):
    for path in Path(__file__).parents[3].glob("clusters/*.yaml"):
        assert path.read_text().startswith("# ")
        assert load(path, Cluster)


def test_an_elastic_cluster_shrinks_to_sizes_that_exist(folder: Path) -> None:
    hosts = cluster(ELASTIC).value
    assert [world.processes for world in hosts.smaller_worlds(False)] == [2, 3]
    slices = cluster(
        "{accelerator: v5e-16, slices: {min: 1, max: 2}, provider: {kind: local}}"
    ).value
    assert [world.slices for world in slices.smaller_worlds(True)] == [1]
    assert slices.world(True).slices == 2


def test_a_range_that_is_empty_or_of_parts_of_several_slices_is_an_error(folder: Path) -> None:
    text = ELASTIC.replace("min: 2", "min: 5")
    assert problems(text) == ["c.yaml:1: hosts.min: 5 is larger than max, 4"]
    text = ELASTIC.replace("hosts:", "slices: 2, hosts:")
    assert "Use slices: {min, max}" in problems(text)[0]


@pytest.mark.parametrize("key", ["max_hours", "unreachable_minutes", "queue_timeout_min"])
@pytest.mark.parametrize("value", ["0", "-1", ".inf", ".nan", "soon"])
def test_a_limit_of_slices_that_is_none_is_refused(key, value, folder):
    (problem,) = problems(f"accelerator: v4-8\nprovider: {{kind: gcp, {key}: {value}}}\n")
    assert problem.startswith(f"c.yaml:2: provider.{key}: expected")


def test_a_cluster_is_one_file_whatever_it_is_called_by(folder):
    (folder / "clusters").mkdir()
    (folder / "clusters/pod.yaml").touch()
    assert (
        cluster_key("pod") == cluster_key("clusters/pod.yaml") == str(folder / "clusters/pod.yaml")
    )
    assert cluster_key("local") == "local" and cluster_key("v4-8") == "v4-8"
