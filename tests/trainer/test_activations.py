"""What layers keep for the backward pass, by arithmetic and by JAX's own gradients."""

import jax
import jax.numpy as jnp
import pytest

from tests.spec.test_roofline import CORPUS, world_of
from trainer.data.packing import Batch
from trainer.loss import loss_sum
from trainer.model import Network, Params
from trainer.spec.activations import kept_per_token
from trainer.spec.job import Job
from trainer.spec.resolve import resolve

LAYERS, ROWS, LENGTH = 7, 2, 44


def job_of(remat: str, **model: int) -> Job:
    sizes = {"layers": LAYERS, "d_model": 96, "heads": 6, "head_dim": 20, "d_ff": 224, **model}
    return Job.model_validate(
        {
            "name": "job",
            "steps": 1,
            "model": {**sizes, "remat": remat},
            "data": {"source": "text", "path": "x", "seq_len": LENGTH, "global_batch": ROWS},
        }
    )


def kept_by_jax(job: Job) -> int:
    """Bytes of all that has a leading dim for the layer and one for the positions."""
    network = Network.of(job, resolve(job, world_of("v5e-1"), CORPUS))

    def backward(params: Params):
        numbers = jnp.zeros((ROWS, LENGTH), jnp.int32)
        batch = Batch(numbers, numbers, numbers, numbers, numbers * 1.0, numbers[:, 0])
        return jax.vjp(lambda params: loss_sum(network.bind(params), batch), params)[1]

    leaves = jax.tree.leaves(jax.eval_shape(backward, jax.eval_shape(network.initial)))
    return sum(
        x.size * x.dtype.itemsize for x in leaves if x.shape[:1] == (LAYERS,) and LENGTH in x.shape
    )


@pytest.mark.parametrize("kv_heads", [6, 3])
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_a_layer_keeps_what_jax_asks_for(remat: str, kv_heads: int) -> None:
    job = job_of(remat, kv_heads=kv_heads)
    per_token = kept_per_token(job, resolve(job, world_of("v5e-1"), CORPUS))
    kept = kept_by_jax(job)
    # With `none` there are numbers of which there is one for a row's position or head besides.
    assert per_token * LAYERS * ROWS * LENGTH == pytest.approx(kept, rel=0.02)
