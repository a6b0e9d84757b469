"""What a compiled program's collectives are: along which axis, how often, how many bytes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.worlds import TWO_V5E_16
from trainer.analysis import collectives
from trainer.analysis.hlo import Program
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import Collective
from trainer.distributed import mesh as meshes

MESH = {"data": 2, "fsdp": 2, "tensor": 2}
FLOAT32 = 4


def plan_of(**world: object) -> Plan:
    job = job_of(mesh=MESH)
    return resolve(job, world_of(**{"processes": 1, "devices": 8, **world}), corpus_of(job))


def compiled(plan: Plan, function: Callable[[jax.Array], jax.Array], spec: PartitionSpec) -> str:
    """The text of a function of each device's part of an array (8, 8)."""
    mesh = meshes.build(plan)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped).lower(jnp.zeros((8, 8))).compile().as_text() or ""


def only(found: list[Collective]) -> Collective:
    (one,) = found
    return one


@pytest.mark.parametrize("axis", MESH)
def test_a_sum_is_over_the_axis_that_it_was_asked_for(axis: str) -> None:
    plan = plan_of()
    text = compiled(plan, lambda x: jax.lax.psum(x, axis), PartitionSpec(axis))
    one = only(collectives.of(text, plan))
    assert (one.kind, one.axis, one.link, one.count) == ("all-reduce", axis, "ici", 1)
    # A ring of two passes each half twice.
    assert one.bytes == 4 * 8 * FLOAT32


def test_several_axes_are_named_together() -> None:
    plan = plan_of()
    text = compiled(plan, lambda x: jax.lax.psum(x, ("data", "fsdp")), PartitionSpec("tensor"))
    assert only(collectives.of(text, plan)).axis == "data+fsdp"


def test_a_gather_sends_what_the_others_lack() -> None:
    plan = plan_of()

    def gathered(x: jax.Array) -> jax.Array:
        return x * jnp.sum(jax.lax.all_gather(x, ("fsdp", "tensor")) ** 2)

    one = only(collectives.of(compiled(plan, gathered, PartitionSpec(("fsdp", "tensor"))), plan))
    assert (one.kind, one.axis) == ("all-gather", "fsdp+tensor")
    assert one.bytes == 3 * 2 * 8 * FLOAT32


def test_what_is_in_loops_counts_as_often_as_they_run() -> None:
    plan = plan_of()

    def inner(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(jax.lax.psum(x, "tensor")), None

    def outer(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.lax.scan(inner, x, length=5)[0], None

    text = compiled(plan, lambda x: jax.lax.scan(outer, x, length=3)[0], PartitionSpec())
    one = only(collectives.of(text, plan))
    assert one.count == 15
    assert one.bytes == 15 * 8 * 8 * FLOAT32


def test_it_says_which_part_of_the_model_and_which_pass_it_serves() -> None:
    plan = plan_of()

    def loss(x: jax.Array) -> jax.Array:
        with jax.named_scope("attention"):
            return jnp.sum(jnp.sin(jax.lax.psum(jnp.cos(x), "tensor")))

    text = compiled(plan, jax.grad(loss), PartitionSpec())
    assert {(one.part, one.backward) for one in collectives.of(text, plan)} == {
        ("attention", False),
        ("attention", True),
    }


def program_with(groups: str) -> str:
    return f"""\
HloModule m

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0:T(8,128)(2,1)}} parameter(0)
  ROOT %all-reduce = f32[8]{{0}} all-reduce(%x), channel_id=1, {groups}, to_apply=%add
}}
"""


@pytest.mark.parametrize(
    ("groups", "axis"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", "tensor"),
        ("replica_groups=[4,2]<=[8]", "tensor"),
        ("replica_groups=[2,4]<=[2,4]T(1,0)", "data+tensor"),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", "data+fsdp"),
        ("replica_groups=mesh['a'=4,'b'=2] {'b'}", "tensor"),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", "data"),
        ("replica_groups=mesh['a'=8] {'a':(2)2}", "fsdp"),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}", "tensor"),
        ("replica_groups={}", "data+fsdp+tensor"),
    ],
)
def test_every_way_to_write_the_groups_is_read(groups: str, axis: str) -> None:
    assert only(collectives.of(program_with(groups), plan_of())).axis == axis


def test_what_leaves_an_island_crosses_the_network() -> None:
    facts = {"accelerator": "h100-16", "platform": "gpu", "simulated": True, "devices": 4}
    plan = plan_of(**facts, processes=2, hosts_per_slice=2)
    for groups, link in (("[4,2]<=[2,4]T(1,0)", "dcn"), ("[4,2]<=[8]", "ici")):
        one = only(collectives.of(program_with(f"replica_groups={groups}"), plan))
        assert one.link == link


BETWEEN_SLICES = """\
ENTRY %main (x: bf16[64,8]) -> token[] {
  %x = bf16[64,8]{1,0} parameter(0)
  %after = token[] after-all()
  %send = (bf16[64,8]{1,0}, u32[], token[]) send(%x, %after), channel_id=1, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="{1,2}x{0:15}",_xla_megascale_transfer_type="ALL_REDUCE"}
  ROOT %sent = token[] send-done(%send), channel_id=1, is_host_transfer=true
}
"""


def test_a_sum_over_slices_is_sent_through_the_hosts() -> None:
    job = job_of(mesh={"data": 2}, data={"global_batch": 32})
    plan = resolve(job, TWO_V5E_16, corpus_of(job))
    one = only(collectives.of(BETWEEN_SLICES, plan))
    assert (one.kind, one.axis, one.link, one.overlapped) == ("all-reduce", "data", "dcn", True)
    assert one.bytes == 64 * 8 * 2


FROM_STAGE_TO_STAGE = """\
ENTRY %main (x: bf16[32,128]) -> token[] {
  %x = bf16[32,128]{1,0} parameter(0)
  %after = token[] after-all()
  %send = (bf16[32,128]{1,0}, u32[], token[]) send(%x, %after), channel_id=2, \
is_host_transfer=true, frontend_attributes={_xla_megascale_target={{100000->200000},\
{100001->200001}},_xla_megascale_transfer_type="ONE_TO_ONE"}
  ROOT %sent = token[] send-done(%send), channel_id=2, is_host_transfer=true
}
"""
"""A permutation along `pipeline`, in the form that the compiler gives it for two TPU slices."""


def test_what_goes_from_stage_to_stage_on_another_slice_is_a_permutation() -> None:
    job = job_of(mesh={"pipeline": 2}, data={"global_batch": 32})
    plan = resolve(job, TWO_V5E_16, corpus_of(job))
    one = only(collectives.of(FROM_STAGE_TO_STAGE, plan))
    assert (one.kind, one.axis, one.link) == ("collective-permute", "pipeline", "dcn")
    assert one.bytes == 32 * 128 * 2


ON_SPARSE_CORE = """\
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%offloaded (whole: bf16[64,8]) -> bf16[8,8] {
  %whole = bf16[64,8]{1,0} parameter(0)
  ROOT %scatter = bf16[8,8]{1,0} reduce-scatter(%whole), dimensions={0}, to_apply=%sum
}

ENTRY %main (x: bf16[64,8]) -> bf16[8,8] {
  %x = bf16[64,8]{1,0} parameter(0)
  %product = bf16[64,8]{1,0} negate(%x), metadata={op_name="transpose(jvp())/mlp/dot"}
  %copy = bf16[64,8]{1,0} copy(%product)
  %call-start = ((bf16[64,8]), bf16[8,8]) call-start(%copy), to_apply=%offloaded
  ROOT %call-done = bf16[8,8]{1,0} call-done(%call-start)
}
"""
"""As the compiler for a TPU v6e writes it: no metadata where the collective stands."""


def test_one_that_lost_its_scope_serves_what_is_nearest_to_it() -> None:
    one = only(collectives.of(ON_SPARSE_CORE, plan_of()))
    assert (one.kind, one.part, one.backward) == ("reduce-scatter", "mlp", True)
    assert one.bytes == 64 * 8 * 2 * 7 // 8


def test_what_a_sparse_core_does_is_beside_other_work() -> None:
    assert only(collectives.of(ON_SPARSE_CORE, plan_of())).overlapped


def test_a_loop_that_does_not_count_is_refused() -> None:
    def until(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 3, lambda x: x + 1, x)

    program = Program(jax.jit(until).lower(jnp.zeros(4)).compile().as_text() or "")
    with pytest.raises(ValueError, match="while"):
        _ = program.runs
