"""The running state lies as the plan says, on every mesh."""

import jax
import pytest
from jax.sharding import PartitionSpec

from launcher.ui.sharding_view import holders
from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.model.seed import SEED_SHAPE

MESHES = [
    {"fsdp": 8},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"data": 1, "fsdp": 2, "tensor": 4},  # key/value heads do not divide: replicated
    {"data": 8, "fsdp": 1},
]
WIDE = {"d_model": 256, "d_ff": 512, "heads": 4, "kv_heads": 2}


@pytest.fixture(scope="module", params=MESHES, ids=str)
def stepped(request):
    job = job_of(mesh=request.param, model=WIDE)
    made = bench(job, devices=8)
    return made, made.run(2)[0]


def test_every_parameter_lies_as_planned(stepped):
    made, state = stepped
    for array in made.plan.parameters:
        assert _spec(state.params[array.name]) == array.spec, array.name


def test_the_picture_of_an_array_is_as_jax_has_it(stepped):
    made, state = stepped
    for array in made.plan.parameters:
        parts = {}
        for shard in state.params[array.name].addressable_shards:
            parts.setdefault(str(shard.index), set()).add(shard.device.id)
        drawn = holders(array, made.plan).values()
        assert sorted(map(sorted, parts.values())) == sorted(drawn), array.name


def test_every_moment_lies_as_its_parameter(stepped):
    made, state = stepped
    planned = {array.name: array.spec for array in made.plan.parameters}
    moments = [leaf for path, leaf in _leaves(state.optimizer) if _name(path)]
    assert len(moments) == 2 * len(planned)
    for path, leaf in _leaves(state.optimizer):
        if name := _name(path):
            assert _spec(leaf) == planned[name], path


def test_counters_are_whole_on_every_device(stepped):
    _, state = stepped
    counters = [leaf for path, leaf in _leaves(state.optimizer) if not _name(path)]
    for leaf in [state.step, *counters]:
        assert leaf.sharding.is_fully_replicated


def test_no_leaf_is_split_over_its_layers(stepped):
    _, state = stepped
    for path, leaf in _leaves(state):
        if "layers." in str(path):
            assert leaf.sharding.spec[:1] in [(), (None,)], path


def test_bytes_per_device_are_the_planned_ones(stepped):
    made, state = stepped
    planned = 3 * sum(array.bytes_per_device for array in made.plan.parameters)
    for device in made.program.mesh.devices.flat:
        held = sum(
            shard.data.nbytes
            for leaf in jax.tree.leaves(state)
            for shard in leaf.addressable_shards
            if shard.device == device
        )
        assert held == pytest.approx(planned, rel=0.02)


def test_initialization_never_holds_a_whole_array_on_a_device():
    made = bench(job_of(mesh={"fsdp": 8}, model={**WIDE, "layers": 8}), devices=8)
    program = made.program
    with jax.set_mesh(program.mesh):
        out = program.shardings.params
        compiled = jax.jit(program.network.initial, out_shardings=out).lower(SEED_SHAPE).compile()
    whole = max(4 * _size(array.shape) for array in made.plan.parameters)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < whole
    assert memory.output_size_in_bytes < whole


def _leaves(tree):
    return jax.tree_util.tree_flatten_with_path(tree)[0]


def _name(path):
    """The parameter that a leaf of the optimizer's state belongs to."""
    keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    return keys[-1] if keys else None


def _spec(leaf):
    spec = leaf.sharding.spec
    assert isinstance(spec, PartitionSpec)
    return (*spec, *(None,) * (leaf.ndim - len(spec)))


def _size(shape):
    size = 1
    for dim in shape:
        size *= dim
    return size
