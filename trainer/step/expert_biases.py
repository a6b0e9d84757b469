"""Biases that balance experts: an update changes them by the experts' load, not by a gradient.

The letters of dims are those of trainer/model/__init__.py.

References:
    Algorithm 1 of https://arxiv.org/abs/2408.15664
"""

import jax
import jax.numpy as jnp

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.planning.parameter_shapes import BALANCING_BIASES
from trainer.model import Params


def no_load(weights: Params) -> jax.Array | None:
    """Returns zeros for the load of all experts (L, E); None for a model without biases."""
    return jnp.zeros_like(weights[BALANCING_BIASES]) if BALANCING_BIASES in weights else None


def balanced(job: Job, params: Params, load_LE: jax.Array | None) -> Params:
    """Returns the parameters with the biases moved towards an even load of the experts.

    `load_LE` is the number of tokens that each expert had in the global batch. Biases that are not
    among the trained parameters stay as they are.
    """
    moe = job.model.moe if isinstance(job.model, Model) else None
    rate = moe and moe.bias_update_rate
    if load_LE is None or rate is None or BALANCING_BIASES not in params:
        return params
    mean_L1 = jnp.mean(load_LE, axis=1, keepdims=True)
    signs_LE = jnp.sign(mean_L1 - load_LE)
    biases_xE = params[BALANCING_BIASES]  # of layers that may be in rounds
    return {**params, BALANCING_BIASES: biases_xE + rate * signs_LE.reshape(biases_xE.shape)}
