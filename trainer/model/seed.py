"""The seed of a job as an argument of its programs: with another one, nothing is compiled again."""

import jax
import jax.numpy as jnp
import numpy as np

from trainer.contract.config.job import Job

SEED_SHAPE = jax.ShapeDtypeStruct((), jnp.uint32)
_BITS = 0xFFFFFFFF


def seed_of(job: Job) -> np.ndarray:
    """Returns the job's seed for `jax.random.key`, as an array of `SEED_SHAPE`.

    It has the lowest 32 bits. With JAX's default of 32 bits for integers, keys have no others.
    """
    return np.asarray(job.seed & _BITS, np.uint32)
