"""Knowledge distillation: the loss by which a model learns the predictions of a teacher.

With the logits s of the model and t of the teacher, a temperature T and a weight a, the loss of a
target is

    a T^2 KL(softmax(t / T) || softmax(s / T)) + (1 - a) cross-entropy.

The gradient of the divergence falls with 1 / T^2, for which T^2 makes up. The letters of dims are
those of trainer/model/__init__.py.

References:
    Hinton, Vinyals, Dean, section 2, https://arxiv.org/abs/1503.02531
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from trainer.contract.config.distill import Distill
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.teacher import of_teacher
from trainer.data.packing import Batch
from trainer.distributed import mesh as meshes
from trainer.model import Decoder, Network, Params


@dataclass(frozen=True)
class Teacher:
    """The network of a teacher; its weights are arguments of the step."""

    network: Network
    settings: Distill
    shapes: dict[str, jax.ShapeDtypeStruct]
    shardings: dict[str, NamedSharding]

    @classmethod
    def of(cls, job: Job, plan: Plan, mesh: Mesh | AbstractMesh) -> "Teacher | None":
        """Returns the teacher of a distillation; None for another job."""
        found = of_teacher(job, plan)
        if job.distill is None or found is None:
            return None
        shapes = {
            array.name: jax.ShapeDtypeStruct(array.shape, jnp.dtype(array.dtype))
            for array in found[1].parameters
        }
        shardings = meshes.parameter_shardings(found[1], mesh)
        return cls(Network.of(*found), job.distill, shapes, shardings)

    def run_before(
        self, params: Params, weights: Params, batch: Batch
    ) -> tuple["TeacherFeatures", Params]:
        """Returns what the teacher computes of a batch (B, S), and `params` for the next pass.

        `params` are those of the model that learns, and `weights` those of the teacher.
        """
        model = self.network.bind(weights)
        features_BSD, _ = model.features(batch.tokens, batch.segments, batch.positions)
        # The barrier orders the two passes, whose collectives could otherwise overtake each other.
        params, features_BSD = jax.lax.optimization_barrier((params, features_BSD))
        features_BSD = jax.lax.stop_gradient(features_BSD)
        return TeacherFeatures(model, features_BSD, self.settings), params


class TeacherFeatures(NamedTuple):
    """The features of a batch, and the model that makes logits of them."""

    model: Decoder
    features: jax.Array
    """Features (B, S, D), with the D of the teacher."""
    settings: Distill


def mixed(
    settings: Distill, entropies_RT: jax.Array, ours_RTV: jax.Array, theirs_RTV: jax.Array
) -> jax.Array:
    """Returns the loss of each target, in nats, (R, T), from its cross-entropy and the logits."""
    temperature, weight = settings.temperature, settings.weight
    found_RT = divergence(ours_RTV / temperature, theirs_RTV / temperature)
    return weight * temperature**2 * found_RT + (1 - weight) * entropies_RT


def divergence(ours_RTV: jax.Array, theirs_RTV: jax.Array) -> jax.Array:
    """Returns KL(softmax(theirs) || softmax(ours)), in nats, (R, T)."""
    expected_RTV = jax.nn.softmax(theirs_RTV, axis=-1)
    mean_RT = jnp.sum(expected_RTV * (theirs_RTV - ours_RTV), axis=-1)
    return mean_RT + jax.nn.logsumexp(ours_RTV, axis=-1) - jax.nn.logsumexp(theirs_RTV, axis=-1)
