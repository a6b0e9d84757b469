"""The digest of an array: any changed bit shows, no way of splitting it does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainer.checkpoint import digests as module
from trainer.checkpoint.digests import digest, digests

SHAPE = (4, 6, 8)
ARRAY = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
compiled = jax.jit(digest)


@given(place=st.integers(0, ARRAY.size - 1), bit=st.integers(0, 31))
def test_one_flipped_bit_changes_it(place, bit):
    bits = ARRAY.copy().view(np.uint32).reshape(-1)
    bits[place] ^= np.uint32(1 << bit)
    assert compiled(bits.view(np.float32).reshape(SHAPE)) != compiled(ARRAY)


@given(st.permutations(range(SHAPE[0])))
def test_rows_in_another_order_change_it(order):
    same = list(order) == sorted(order)
    assert (compiled(ARRAY[list(order)]) == compiled(ARRAY)) == same


def split(array, *spec):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


@pytest.mark.parametrize("spec", [(), ("x",), (None, "y"), ("x", None, "y"), (("x", "y"),)])
def test_it_does_not_depend_on_the_mesh(spec):
    expected = int(compiled(ARRAY))
    assert int(compiled(split(ARRAY, *spec))) == expected
    assert digests([split(ARRAY, *spec), jnp.array(ARRAY)]) == [expected, expected]


@pytest.mark.parametrize("shape", [(4, 6, 8), (192,), (7, 5), (1, 4), (0, 3), ()])
def test_it_does_not_depend_on_blocks(shape, monkeypatch):
    array = jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32).reshape(shape) + 1
    expected = int(compiled(array))
    for size in (1, 64, 1000):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        in_blocks = jax.jit(lambda part: module._in_blocks(part, [0] * part.ndim))
        assert int(in_blocks(array)) == expected


def test_it_needs_little_memory():
    array = split(np.ones((64, 256, 1024), np.float32), None, "x")
    program = module._of_shards(array.sharding).lower(array).compile()
    assert program.memory_analysis().temp_size_in_bytes < array.nbytes / 8


def test_rows_of_zeros_at_the_end_do_not_count():
    padded = np.concatenate([ARRAY, np.zeros((2, *SHAPE[1:]), np.float32)])
    assert compiled(padded) == compiled(ARRAY)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "bfloat16", "float16", "int8"])
def test_it_knows_the_dtypes_of_a_state(dtype):
    array = jnp.arange(1, 9).astype(dtype)
    assert compiled(array) != compiled(array.at[3].set(0))


@pytest.mark.parametrize("shape", [(2, 2, 6, 8), (4, 1, 6, 8), (1, 4, 6, 8)])
@pytest.mark.parametrize("saved", [SHAPE, (2, 2, 6, 8), (4, 1, 6, 8)])
def test_layers_in_other_dims_have_the_digest_of_those_saved(shape, saved):
    of_those_saved = jax.jit(partial(digest, saved=saved))
    assert of_those_saved(ARRAY.reshape(shape)) == compiled(ARRAY.reshape(saved))
