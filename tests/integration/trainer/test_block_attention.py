"""Attention on CPU devices, block by block, computes what plain attention computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.attention_inputs import (
    assert_close,
    positions_of,
    random_arrays,
    segments_of,
    value_and_gradients,
)
from trainer.data.packing import in_order_of_chunks
from trainer.model.attention_kernels import attend, query_blocks

ROWS, LENGTH, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 2, 512, 4, 2, 16, 8
SHAPES = [(ROWS, LENGTH, HEADS, HEAD_DIM), (ROWS, LENGTH, KV_HEADS, HEAD_DIM),
          (ROWS, LENGTH, KV_HEADS, VALUE_DIM)]  # fmt: skip


@pytest.fixture(scope="module")
def arrays() -> list[jax.Array]:
    return random_arrays([*SHAPES, (HEADS,)])


@pytest.fixture(scope="module")
def segments() -> jax.Array:
    """Documents that end inside a block, at its edge, and never."""
    return segments_of(LENGTH, [[100, 256], [512, 512]])


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(("window", "softcap", "scale"), [(None, None, None), (100, 2.0, 0.2)])
def test_values_and_gradients_are_those_of_plain_attention(
    arrays, segments, sinks, window, softcap, scale
):
    arguments = (segments, positions_of(segments), window, softcap, scale)
    inputs = arrays if sinks else arrays[:3]
    found, wanted = (
        value_and_gradients(attend(kind, *arguments), inputs) for kind in ("blocks", "reference")
    )
    assert_close(found, wanted)


def test_positions_in_the_order_of_chunks_are_one_block(arrays, segments):
    positions = positions_of(segments)
    chunks = 4
    moved_segments, moved_positions = (
        jnp.array(in_order_of_chunks(np.asarray(x), chunks)) for x in (segments, positions)
    )
    found, wanted = (
        value_and_gradients(
            attend(kind, moved_segments, moved_positions, chunks=chunks), arrays[:3]
        )
        for kind in ("blocks", "reference")
    )
    assert_close(found, wanted)


@pytest.mark.parametrize(("length", "count"), [(32, 1), (256, 2), (384, 3), (300, 2), (4096, 4)])
def test_blocks_have_equal_sizes_of_128_positions_or_more(length, count):
    assert query_blocks(length) == count


def test_each_block_multiplies_the_keys_up_to_its_end(arrays, segments):
    mix = attend("blocks", segments, positions_of(segments))
    program = str(jax.make_jaxpr(mix)(*arrays[:3]))
    scores = f"f32[{ROWS},{KV_HEADS},{HEADS // KV_HEADS}"
    assert all(f"{scores},128,{keys}]" in program for keys in (128, 256, 384, 512))
    assert f"{scores},512,512]" not in program
