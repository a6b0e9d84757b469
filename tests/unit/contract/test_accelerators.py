"""Accelerator names, and what they stand for."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.planning.accelerators import parse, with_hosts
from trainer.contract.planning.chips import GPUS, TPUS, GiB

# Name, hosts, devices per host, topology, host bounds: by hand, from the public tables.
TPU_SLICES = [
    ("v2-8", 1, 8, (2, 2), (2, 2)),
    ("v3-32", 4, 8, (4, 4), (2, 2)),
    ("v4-8", 1, 4, (2, 2, 1), (2, 2, 1)),
    ("v4-16", 2, 4, (2, 2, 2), (2, 2, 1)),
    ("v4-32", 4, 4, (2, 2, 4), (2, 2, 1)),
    ("v4-64", 8, 4, (2, 4, 4), (2, 2, 1)),
    ("v4-128", 16, 4, (4, 4, 4), (2, 2, 1)),
    ("v4-1024", 128, 4, (8, 8, 8), (2, 2, 1)),
    ("v5e-1", 1, 1, (1, 1), (1, 1)),
    ("v5e-4", 1, 4, (2, 2), (2, 2)),
    ("v5e-8", 1, 8, (2, 4), (2, 4)),
    ("v5e-16", 4, 4, (4, 4), (2, 2)),
    ("v5p-64", 8, 4, (2, 4, 4), (2, 2, 1)),
    ("v5p-512", 64, 4, (4, 8, 8), (2, 2, 1)),
    ("v5p-12288", 1536, 4, (16, 16, 24), (2, 2, 1)),
    ("v6e-256", 64, 4, (16, 16), (2, 2)),
    ("v7x-8", 1, 8, (2, 2, 1), (2, 2, 1)),
    ("v7x-128", 16, 8, (4, 4, 4), (2, 2, 1)),
]
NAMES = [f"{tpu.name}-{tpu.suffix(chips)}" for tpu in TPUS.values() for chips in tpu.topologies]


@pytest.mark.parametrize(("name", "hosts", "devices", "topology", "bounds"), TPU_SLICES)
def test_a_tpu_name_says_hosts_devices_and_wiring(name, hosts, devices, topology, bounds):
    made = parse(name)
    assert (made.hosts, made.devices_per_host) == (hosts, devices)
    assert (made.topology, made.host_bounds) == (topology, bounds)


@pytest.mark.parametrize("name", NAMES)
def test_every_slice_is_whole(name):
    made = parse(name)
    assert made.name == name
    assert made.topology and made.host_bounds
    assert prod(made.topology) == made.chips == made.hosts * made.chips_per_host
    assert prod(made.host_bounds) == made.chips_per_host
    assert made.devices == made.chips * TPUS[made.generation].devices
    assert all(n % b == 0 for n, b in zip(made.topology, made.host_bounds, strict=True))


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 10_000))
def test_gpu_name_is_whole_hosts_or_error_names_such(kind, size):
    try:
        made = parse(f"{kind}-{size}")
        assert made.chips == made.devices == size
    except ValueError as error:
        named = [word for word in str(error).split() if word.startswith(f"{kind}-")][1:]
        assert named and all(parse(name) for name in named)


@given(st.sampled_from(sorted(TPUS)), st.integers(0, 999_999))
def test_every_tpu_size_parses_or_the_error_names_ones_that_do(kind, size):
    try:
        assert parse(f"{kind}-{size}").name == f"{kind}-{size}"
    except ValueError as error:
        named = [word for word in str(error).split() if word.startswith(f"{kind}-")][1:]
        assert named and all(parse(name) for name in named)


@given(st.text())
def test_any_text_is_an_accelerator_or_a_value_error(name):
    try:
        parse(name)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("name", "canonical", "for_ray"),
    [
        ("v5litepod-16", "v5e-16", "v5litepod-16"),
        ("V4-32", "v4-32", "v4-32"),
        ("tpu7x-8", "v7x-8", "v7x-8"),
        ("h100-80gb-8", "h100-8", None),
    ],
)
def test_other_names_of_the_same_thing_are_understood(name, canonical, for_ray):
    made = parse(name)
    assert (made.name, made.ray_pod_type) == (canonical, for_ray)


def test_a_megacore_chip_is_one_device_with_all_its_memory():
    assert parse("v4-8").hbm_bytes == 32 * GiB


@pytest.mark.parametrize(
    ("name", "memory", "peak"), [("v3-8", 16, 61.5e12), ("v7x-8", 96, 1153.5e12)]
)
def test_where_a_chip_is_two_devices_each_has_half(name, memory, peak):
    made = parse(name)
    assert (made.hbm_bytes, made.peak_bf16_flops) == (memory * GiB, peak)


def test_gpus_come_eight_to_a_host():
    made = parse("h100-16")
    assert (made.hosts, made.devices_per_host, made.topology) == (2, 8, None)


def test_a_cpu_is_what_the_caller_says_and_has_no_facts():
    made = parse("cpu", hosts=2, devices_per_host=3)
    assert (made.hosts, made.devices_per_host, made.devices) == (2, 3, 6)
    assert made.peak_bf16_flops is None


@pytest.mark.parametrize("name", ["v5e-8", "v6e-8"])
def test_where_the_field_disagrees_eight_chips_are_one_host_or_two(name):
    assert [parse(name, hosts=n).devices_per_host for n in (1, 2)] == [8, 4]
    assert parse(name, devices_per_host=4).host_bounds == (2, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v4-30", "v4-30 does not exist. The nearest sizes: v4-16 or v4-32"),
        ("v5e-256000", "v5e-256000 does not exist. The nearest sizes: v5e-256"),
        ("h100-12", "h100-12 does not exist: a host has 8 GPUs. The nearest sizes: h100-8 or"),
        ("v4", "'v4' needs a size, such as v4-8"),
        ("h10-8", "Did you mean 'h100'?"),
    ],
)
def test_impossible_name_is_reported_with_nearest_possible(name, message):
    with pytest.raises(ValueError) as caught:
        parse(name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "wanted", "message"),
    [
        ("v4-32", {"hosts": 3}, "v4-32 has 4 hosts x 4 devices, not 3 hosts"),
        ("h100-8", {"hosts": 3}, "h100-8 has 1 host x 8 devices, not 3 hosts"),
        ("h100-16", {"hosts": 1}, "h100-16 has 2 hosts x 8 devices, not 1 host"),
        ("v6e-8", {"devices_per_host": 2}, "v6e-8 has 1 host x 8 devices, not 2 devices"),
    ],
)
def test_hosts_that_do_not_fit_the_name_are_refused(name, wanted, message):
    with pytest.raises(ValueError, match=message):
        parse(name, **wanted)


@pytest.mark.parametrize(
    ("name", "hosts", "smaller"),
    [
        ("v4-32", 2, "v4-16"),
        ("v6e-256", 4, "v6e-16"),
        ("v6e-256", 2, "v6e-8"),
        ("h100-16", 3, "h100-24"),
    ],
)
def test_another_number_of_hosts_is_another_slice_of_the_same_hosts(name, hosts, smaller):
    made = with_hosts(parse(name), hosts)
    assert (made.name, made.hosts) == (smaller, hosts)
    assert made.devices_per_host == parse(name).devices_per_host


def test_a_number_of_hosts_without_a_topology_names_the_nearest_with_one():
    with pytest.raises(ValueError, match=r"3 hosts of 4 chips\. The nearest host counts: 2 or 4"):
        with_hosts(parse("v4-32"), 3)


@given(st.sampled_from(NAMES), st.integers(-3, 3000))
def test_any_number_of_hosts_gives_that_many_or_a_value_error(name, hosts):
    try:
        assert with_hosts(parse(name), hosts).hosts == hosts
    except ValueError as error:
        assert "nearest" in str(error)
