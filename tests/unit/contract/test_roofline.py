"""Bounds of a step, against arithmetic by hand."""

import pytest

from tests.support.llama_jobs import CORPUS, found, job_of, world_of
from tests.support.worlds import tpu_world
from trainer.contract.config.job import Job
from trainer.contract.estimates.activations import least_kept_per_token, offloaded_bytes
from trainer.contract.estimates.roofline import bounds
from trainer.contract.estimates.traffic import traffic
from trainer.contract.planning.planner import resolve

KERNELS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
OUTPUT = 128_256 * 4096
NORMS = 65 * 4096
LLAMA = KERNELS + 2 * OUTPUT + NORMS
ATTENTION = 32 * 4096 * 4096


def test_fully_sharded_llama_8b_on_32_chips() -> None:
    job, world = job_of(64), world_of("v5p-64")
    best = found(job, world)
    tokens = 64 * 4096
    assert best.model_flops == tokens * (6 * (KERNELS + OUTPUT) + 6 * ATTENTION)
    assert best.program_flops == best.model_flops
    assert best.compute_s == pytest.approx(best.model_flops / (32 * 459e12))
    matrices = KERNELS + 2 * OUTPUT
    gathered = 3 * 2 * matrices / 32 * 31
    assert best.link_s == pytest.approx(gathered / 600e9, rel=1e-3)
    kept = 2 * 4096 * 32 * least_kept_per_token(job, resolve(job, world, CORPUS))
    moved = 6 * 4 * matrices / 32 + 2 * 2 * (KERNELS + OUTPUT) + 2 * kept
    assert best.hbm_s == pytest.approx(moved / 2765e9, rel=1e-3)
    assert (best.binds, best.step_s, best.mfu) == ("compute", best.compute_s, pytest.approx(1.0))


def test_full_remat_recomputes_products_of_layer_but_the_last() -> None:
    best = found(job_of(64, "full"), world_of("v5p-64"))
    again = KERNELS - 32 * 4096 * 14336 + ATTENTION
    assert best.program_flops - best.model_flops == 64 * 4096 * 2 * again
    assert best.mfu == pytest.approx(best.model_flops / best.program_flops)


def test_remat_of_dots_recomputes_attention_without_a_kernel() -> None:
    job, world = job_of(64, "dots"), world_of("v5p-64")
    best = found(job, world)
    assert best.program_flops == best.model_flops
    plan = resolve(job, world, CORPUS).model_copy(update={"attention": "reference"})
    best = bounds(job, plan)
    assert best is not None
    assert best.program_flops - best.model_flops == 64 * 4096 * 2 * ATTENTION


def test_tensor_parallelism_sums_activations_four_times_a_layer() -> None:
    best = found(job_of(8, fsdp=8, tensor=4), world_of("v5p-64"))
    matrices = 2 * (KERNELS + 2 * OUTPUT) / 32
    activations = 4 * 32 * 4096 * 4096 * 2
    expected = 3 * matrices * 7 + 2 * activations * 3 / 4
    assert best.link_s == pytest.approx(expected / 600e9, rel=1e-3)


def test_parts_of_sequences_gather_keys_and_values_and_sum_all_gradients() -> None:
    best = found(job_of(8, "full", fsdp=8, context=4), world_of("v5p-64"))
    matrices = 2 * (KERNELS + 2 * OUTPUT) / 8
    keys = 1024 * 8 * 128 * 2
    expected = 3 * matrices * 7 + 2 * matrices * 3 / 4 + 32 * 6 * keys * 3
    assert best.link_s == pytest.approx(expected / 600e9, rel=1e-3)


def test_heads_are_exchanged_in_each_pass_and_their_gradients_once() -> None:
    best = found(job_of(8, "full", fsdp=4, context=8), world_of("v5p-64"))
    matrices = 2 * (KERNELS + 2 * OUTPUT) / 4
    heads = 2 * 512 * 2 * (32 + 8) * 128 * 2
    expected = 3 * matrices * 3 + 2 * matrices * 7 / 8 + 32 * 3 * heads * 7 / 8
    assert best.link_s == pytest.approx(expected / 600e9, rel=1e-3)


def test_gradients_of_slices_are_summed_over_the_network() -> None:
    best = found(job_of(512), world_of("v5e-256", slices=2))
    per_host = 2 * 2 * LLAMA / 2 / 64
    assert best.dcn_s == pytest.approx(per_host / 12.5e9, rel=1e-3)
    assert best.link_s == best.ici_s > best.dcn_s


def test_weights_that_gpu_hosts_share_cross_the_network() -> None:
    best = found(job_of(16), world_of("h200-16"))
    per_host = 3 * 2 * LLAMA / 2
    assert best.link_s == best.dcn_s == pytest.approx(per_host / 400e9, rel=1e-2)


def test_more_micro_batches_gather_the_weights_more_often() -> None:
    once = job_of(64)
    data = once.data.model_copy(update={"grad_accum_steps": 2})
    twice = once.model_copy(update={"data": data})
    world = world_of("v5p-64")
    assert found(twice, world).link_s == pytest.approx(2 * found(once, world).link_s, rel=1e-3)
    assert found(twice, world).compute_s == found(once, world).compute_s


def test_of_cpu_devices_nothing_is_known() -> None:
    job, simulated = job_of(64), tpu_world("v4-32", (2, 2, 4), (2, 2, 1))
    assert simulated.on_cpu
    assert bounds(job, resolve(job, simulated, CORPUS)) is None


def test_traffic_by_axis_adds_up_to_the_bound_of_the_links() -> None:
    job, world = job_of(8, fsdp=8, tensor=4), world_of("v5p-64")
    sent = traffic(job, resolve(job, world, CORPUS))
    assert [(one.axis, one.link) for one in sent] == [("fsdp", "ici"), ("tensor", "ici")]
    assert sum(one.bytes for one in sent) / 600e9 == pytest.approx(found(job, world).ici_s)


def test_traffic_between_slices_is_that_of_the_network() -> None:
    job, world = job_of(64, data=2), world_of("v5p-64", slices=2)
    sent = traffic(job, resolve(job, world, CORPUS))
    assert [(one.axis, one.link) for one in sent] == [("fsdp", "ici"), ("data", "dcn")]


def test_products_of_offloaded_activations_are_not_recomputed() -> None:
    job = offloading("layer_input", "qkv", "attention_output")
    best, world = found(job, world_of("v5p-64")), world_of("v5p-64")
    again = 32 * 2 * 4096 * 14336 + ATTENTION
    assert best.program_flops - best.model_flops == 64 * 4096 * 2 * again
    copied = 2 * (2 * 4096 + 4096 + 2 * 1024)
    assert offloaded_bytes(job, resolve(job, world, CORPUS)) == 2 * 4096 * 32 * copied


def test_micro_batches_copy_the_same_bytes_to_the_host() -> None:
    whole, world = offloading("qkv"), world_of("v5p-64")
    data = whole.data.model_copy(update={"grad_accum_steps": 2})
    parts = whole.model_copy(update={"data": data})
    copied, again = (offloaded_bytes(job, resolve(job, world, CORPUS)) for job in (whole, parts))
    assert copied == again > 0


def offloading(*names: str) -> Job:
    job = job_of(64, "full")
    model = job.decoder.model_copy(update={"offload": names})
    return job.model_copy(update={"model": model})
