"""What instructions of TPU programs cost, and how fast collectives are on the links of a slice."""

import numpy as np
import pytest

from tests.support.llama_jobs import CORPUS, job_of, world_of
from trainer.analysis.forecast import kernels
from trainer.analysis.forecast.costs import PRODUCT_CYCLES, Costs
from trainer.analysis.forecast.links import LINK_SHARE, Links
from trainer.analysis.forecast.schedule import follow
from trainer.analysis.forecast.timeline import Cost
from trainer.analysis.hlo import Program
from trainer.contract.estimates.forecast import MATRIX_PRODUCTS
from trainer.contract.planning import accelerators
from trainer.contract.planning.chips import TPUS
from trainer.contract.planning.plan import MoEKind, Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import StepSchedule

CLOCK_HZ = 1.75e9
SECOND = 1_750_000_000
GROUP = "replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}"
ON_SPARSE_CORES = 'async_execution_thread="sparsecore", to_apply=%gathering'
GATHERING = """\
%gathering (a: bf16[1024,1024]) -> bf16[16384,1024] {
  %a = bf16[1024,1024]{1,0} parameter(0)
  ROOT %g = bf16[16384,1024]{1,0} all-gather(%a), GROUP, dimensions={0}
}
%multiplying (a: bf16[8]) -> bf16[8] {
  ROOT %c = bf16[8]{0} convolution(%a, %a), window={size=1}, dim_labels=bf_io->bf
}
""".replace("GROUP", GROUP)


def plan_of(accelerator: str, rows: int = 64, **mesh: int) -> Plan:
    return resolve(job_of(rows, "full", **mesh), world_of(accelerator), CORPUS)


def cycles(seconds: float) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{int(seconds * SECOND)}"}}}}'


def scope(name: str) -> str:
    return f'metadata={{op_name="jit(step)/{name}"}}'


def followed(*lines: str, plan: Plan | None = None) -> StepSchedule:
    parameter = "  %p = bf16[1024,1024]{1,0} parameter(0)"
    entry = "ENTRY %main (p: bf16[1024,1024]) -> bf16[8] {"
    program = Program("\n".join([GATHERING, entry, parameter, *[f"  {x}" for x in lines], "}"]))
    return follow(program, Costs(program, plan or plan_of("v5p-32", rows=16)))


def test_cycles_are_divided_by_the_clock() -> None:
    found = followed(f"%f = bf16[8]{{0}} fusion(%p), kind=kLoop, {cycles(2)}")
    assert found.parts == {"other fusions": pytest.approx(2)}


@pytest.mark.parametrize(
    ("name", "called", "part"),
    [
        ("mlp/dot_general", "multiplying", "matrix products"),
        ("attention/dot_general", "multiplying", "matrix products"),
        ("attention/vmap(BTNH,BSNH->BNTS)/dot_general", "multiplying", "attention"),
        ("attention/exp", "nothing", "attention"),
        ("norm/mul", "nothing", "other fusions"),
        ("", "multiplying", "matrix products"),
    ],
)
def test_core_work_is_attributed_by_scope_and_product(name: str, called: str, part: str) -> None:
    calls = f"calls=%{called}, " if called == "multiplying" else ""
    found = followed(f"%f = bf16[8]{{0}} fusion(%p), {calls}{scope(name)}, {cycles(1)}")
    assert found.parts == {part: pytest.approx(1)}


def test_products_on_v6e_take_less_than_the_compiler_estimates() -> None:
    product = f"%f = bf16[8]{{0}} fusion(%p), calls=%multiplying, {cycles(1)}"
    other = f"%f = bf16[8]{{0}} fusion(%p), kind=kLoop, {cycles(1)}"
    plan = plan_of("v6e-16", rows=16)
    assert followed(product, plan=plan).device_s == pytest.approx(PRODUCT_CYCLES["v6e"])
    assert followed(other, plan=plan).device_s == pytest.approx(1)


def test_gather_on_sparse_cores_beside_work_costs_nothing() -> None:
    found = followed(
        f"%s = bf16[16384,1024]{{1,0}} call-start(%p), {ON_SPARSE_CORES}",
        f"%f = bf16[8]{{0}} fusion(%p), {cycles(1)}",
        "%d = bf16[16384,1024]{1,0} call-done(%s)",
    )
    assert found.parts == {"other fusions": pytest.approx(1)}
    assert found.busy["SparseCores"] == found.busy["links of fsdp, forward"] > 0


def test_gather_that_the_core_waits_for_is_exposed_over_its_axis() -> None:
    gather = f"%g = bf16[16384,1024]{{1,0}} all-gather(%p), {GROUP}, dimensions={{0}}"
    found = followed(gather)
    sent = 15 * 1024 * 1024 * 2
    link = LINK_SHARE * 600e9 / 6
    assert found.parts["collectives over fsdp"] == pytest.approx(sent / (3 * link), rel=0.05)


@pytest.mark.parametrize("kind", ["there", "back"])
def test_ragged_exchange_sends_the_rows_that_its_smaller_buffer_holds(kind: str) -> None:
    place = "%z = bf16[1280,1024]{1,0} broadcast(%p)"
    operands, shape = ("%p, %z", 1280) if kind == "there" else ("%z, %p", 1024)
    ragged = f"%r = bf16[{shape},1024]{{1,0}} ragged-all-to-all({operands}), {GROUP}"
    found = followed(place, ragged)
    exchanged = followed(f"%r = bf16[1024,1024]{{1,0}} all-to-all(%p), {GROUP}")
    part = "collectives over fsdp"
    assert found.parts[part] == pytest.approx(exchanged.parts[part])


def test_permutes_in_opposite_directions_pass_each_other() -> None:
    def permute(name: str, pairs: str) -> str:
        shape = "(bf16[1024,1024]{1,0}, bf16[1024,1024]{1,0})"
        return f"%{name} = {shape} collective-permute-start(%p), source_target_pairs={pairs}"

    def done(name: str) -> str:
        return f"%{name}d = bf16[1024,1024]{{1,0}} collective-permute-done(%{name})"

    up, down = permute("a", "{{0,1},{1,2},{2,0}}"), permute("b", "{{1,0},{2,1},{0,2}}")
    again = permute("b", "{{0,1},{1,2},{2,0}}")
    alone = followed(up, done("a")).device_s
    assert followed(up, down, done("a"), done("b")).device_s == pytest.approx(alone)
    assert followed(up, again, done("a"), done("b")).device_s == pytest.approx(2 * alone)


def test_copy_to_the_memory_of_the_host_is_slower_than_within_hbm() -> None:
    def copied(space: str) -> StepSchedule:
        target = f"bf16[1024,1024]{{1,0:S({space})}}"
        start = f"%s = ({target}, bf16[1024,1024]{{1,0}}, u32[]) copy-start(%p)"
        return followed(start, f"%d = {target} copy-done(%s)")

    near, far = copied("1"), copied("5")
    assert {*near.parts} == {"waits for copies"}
    assert {*far.parts} == {"waits for host memory"}
    assert far.device_s > 50 * near.device_s


def test_copies_to_the_host_and_back_pass_each_other() -> None:
    stack, part = "bf16[64,1024,1024]{2,1,0:S(5)}", "bf16[1,1024,1024]{2,1,0}"

    def copied(*lines: str) -> float:
        given = f"%h = {stack} parameter(1)", f"%u = {part} parameter(2)", "%i = s32[] parameter(3)"
        return followed(*given, *lines).device_s

    write = (
        f"%w = (({stack}, {part}, s32[]), {stack}, u32[]) dynamic-update-slice-start(%h, %u, %i)"
    )
    read = f"%r = (({stack}, s32[]), {part}, u32[]) dynamic-slice-start(%h, %i)"
    wrote, done = (
        f"%wd = {stack} dynamic-update-slice-done(%w)",
        f"%rd = {part} dynamic-slice-done(%r)",
    )
    one_way = 2 * 1024 * 1024 / TPUS["v5p"].pcie_bytes_per_s
    assert copied(write, wrote) == pytest.approx(one_way, rel=0.01)
    assert copied(read, done) == pytest.approx(one_way, rel=0.01)
    assert copied(write, read, wrote, done) == pytest.approx(one_way, rel=0.01)


def test_custom_calls_without_work_are_free() -> None:
    call = '%b = bf16[8]{0} custom-call(), custom_call_target="AllocateBuffer"'
    assert followed(call).device_s == 0


def test_work_without_an_estimate_takes_its_bytes_through_hbm() -> None:
    found = followed("%f = bf16[1024,1024]{1,0} fusion(%p), kind=kCustom")
    assert found.device_s == pytest.approx(2 * 1024 * 1024 * 2 / 2765e9)


@pytest.mark.parametrize(("dim", "adds_vectors"), [(0, True), (1, False), (2, False)])
def test_sum_of_whole_vectors_takes_its_bytes_through_hbm(dim: int, adds_vectors: bool) -> None:
    found = followed(
        "%x = bf16[4,8192,128]{2,1,0:T(8,128)(2,1)} parameter(0)",
        "%zero = bf16[] constant(0)",
        f"%r = bf16[8192,128]{{1,0}} reduce(%x, %zero), dimensions={{{dim}}}, {cycles(1)}",
    )
    of_bytes = (5 * 8192 * 128 * 2 + 2) / 2765e9
    assert found.device_s == pytest.approx(of_bytes if adds_vectors else 1.0)


KERNEL = """\
ENTRY %main (q: bf16[2,32,4096,128]) -> bf16[2,32,4096,128] {
  %q = bf16[2,32,4096,128]{3,2,1,0} parameter(0)
  %splash_mha_NAME_segmented.1 = bf16[2,32,4096,128]{3,2,1,0} custom-call(%q), \
custom_call_target="tpu_custom_call", operand_layout_constraints={s8[1,QUERIES,KEYS]{2,1,0}, \
bf16[2,32,4096,128]{3,2,1,0}, bf16[2,8,4096,128]{3,2,1,0}, s32[2,4096,128]{2,1,0}}, \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 512, \\"block_kv\\": 512, \\"block_kv_dkv\\": 512}"
}}, metadata={op_name="jit(step)/attention/pallas_call"}
}
"""


def kernel_of(
    name: str = "fwd", queries: int = 8, keys: int = 8, length: int = 4096, results: int = 1
) -> kernels.AttentionKernel:
    text = KERNEL.replace("NAME", name).replace("2,8,4096", f"2,8,{length}")
    one = "bf16[2,32,4096,128]{3,2,1,0}"
    text = text.replace(f"{one} custom-call", f"({', '.join([one] * results)}) custom-call")
    text = text.replace("QUERIES", str(queries)).replace("KEYS", str(keys))
    program = Program(text)
    call = list(program.computations["main"].values())[1]
    assert call.op_name == "jit(step)/attention/pallas_call"
    found = kernels.attention(call)
    assert found
    return found


def test_causal_kernel_computes_the_blocks_below_the_diagonal() -> None:
    blocks = 8 * 9 // 2
    assert kernel_of().scores == 2 * 32 * blocks * 512 * 512


def test_kernel_of_a_window_computes_the_blocks_of_the_window() -> None:
    blocks = 1 + 7 * 2
    assert kernel_of(keys=2).scores == 2 * 32 * blocks * 512 * 512


def test_kernel_of_two_chunks_computes_the_mean_of_all_devices() -> None:
    context = 4
    blocks = 32 * 33 // 2 // context
    assert kernel_of(keys=32, length=4096 * context).scores == 2 * 32 * blocks * 512 * 512


def test_backward_kernels_take_longer_than_the_forward_one() -> None:
    chip = accelerators.parse("v5p-32")
    forward, keys, queries = (kernel_of(name).seconds(chip) for name in ("fwd", "dkv", "dq"))
    assert forward < queries < keys


def test_one_kernel_for_all_gradients_takes_less_time_than_two() -> None:
    chip = accelerators.parse("v5p-32")
    keys, queries, both = (
        kernel_of(name, results=results).seconds(chip)
        for name, results in (("dkv", 2), ("dq", 1), ("dkv", 3))
    )
    assert keys < both == pytest.approx((keys + queries) * 5 / 7)


def test_custom_call_of_another_kernel_is_not_attention() -> None:
    program = Program(KERNEL.replace("splash_mha_NAME", "gmm"))
    assert kernels.attention(list(program.computations["main"].values())[1]) is None


GROUPED = """\
ENTRY %main (x: bf16[16384,4096], w: bf16[8,4096,14336]) -> bf16[16384,14336] {
  %x = bf16[16384,4096]{1,0} parameter(0)
  %w = bf16[8,4096,14336]{2,1,0} parameter(1)
  %gmm.2 = bf16[16384,14336]{1,0} custom-call(%x, %w), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(step)/mlp/jit(gmm)/pallas_call"}, backend_config={"custom_call_config":\
{"body":"","cost_estimate":{"flops":"1924145348608","transcendentals":"0","bytes_accessed":\
"6928990208","remote_bytes_transferred":"0"}}}
}
"""


def grouped_cost(accelerator: str, experts: int = 1, moe: MoEKind = "megablox") -> Cost:
    program, plan = Program(GROUPED), plan_of(accelerator)
    plan = plan.model_copy(update={"mesh": {**plan.mesh, "expert": experts}, "moe": moe})
    call = list(program.computations["main"].values())[2]
    found = Costs(program, plan)("main", call)
    assert found and found.part == MATRIX_PRODUCTS
    return found


def test_grouped_product_takes_the_time_of_its_flops_or_of_its_bytes() -> None:
    flops, moved = 2 * 16384 * 4096 * 14336, 6928990208
    of_flops, of_bytes = grouped_cost("v5p-64"), grouped_cost("v6e-64")
    assert of_flops.seconds == pytest.approx(flops / (0.86 * 0.86 * 459e12))
    assert of_bytes.seconds == pytest.approx(moved / 1640e9)


def test_device_computes_only_the_rows_of_its_experts() -> None:
    assert grouped_cost("v5p-64", experts=4).seconds == pytest.approx(
        grouped_cost("v5p-64").seconds / 4
    )


def test_device_that_exchanges_rows_has_a_quarter_more_places_than_rows() -> None:
    found = grouped_cost("v5p-64", experts=4, moe="megablox_exchange")
    assert found.seconds == pytest.approx(grouped_cost("v5p-64").seconds / 1.25)


def seconds(plan: Plan, members: int, kind: str = "all-gather", sent: float = 1e9) -> float:
    return Links(plan).seconds(kind, sent, np.arange(members)[None])


def test_closed_torus_has_twice_the_links_of_an_open_one() -> None:
    closed, open_one = plan_of("v5p-128"), plan_of("v5p-64")
    assert seconds(open_one, 32) == pytest.approx(2 * seconds(closed, 64), rel=0.05)


def test_whole_pod_of_v6e_is_a_torus_and_a_part_is_not() -> None:
    whole, part = plan_of("v6e-256", rows=256), plan_of("v6e-64")
    assert seconds(part, 64) == pytest.approx(2 * seconds(whole, 256), rel=0.05)


def test_network_between_slices_is_slower_than_links() -> None:
    plan = resolve(job_of(64, "full"), world_of("v5p-32", slices=2), CORPUS)
    assert seconds(plan, 32) > 10 * seconds(plan, 16)


def test_exchange_of_all_with_all_takes_longer_than_a_ring() -> None:
    plan = plan_of("v5p-128")
    assert seconds(plan, 64, "all-to-all") > seconds(plan, 64)
