"""Stages that run a forward and a backward pass in turn, each of another micro-batch: 1F1B.

The letters of dims are those of trainer/model/__init__.py. In tick u, stage y runs the forward pass
of micro-batch u - y. Once the last stage has run that of a micro-batch, all stages compute its loss
together, and then stage y runs the backward pass of micro-batch u - 2 (Y - 1) + y. The first Y - 1
ticks have only forward passes, and the last Y - 1 ticks only backward passes. All of them take as
long as with pipeline.py, but a stage uses what it keeps for a backward pass after 2 (Y - 1) ticks
at most.

JAX cannot differentiate a loop in this order, so this one computes the gradients itself.

References:
    The schedule: PipeDream-Flush, section 2.2 of https://arxiv.org/abs/2104.04473
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.contract.planning import pipeline
from trainer.model.pipeline import of_activations, of_stages, passed_on, where
from trainer.model.pipeline_stages import AXIS, OWN, on_stages
from trainer.model.sharding import constrain, stages
from trainer.model.two_passes import TwoPasses, two_passes

Weights = dict[str, jax.Array]
LAYERS = 0
"""The dim of the layers."""


@dataclass(frozen=True)
class Parts:
    """A model as functions of a micro-batch, with their weights."""

    embed: Callable[[Weights, Any], jax.Array]
    """Function (weights, micro-batch) -> residual stream (B, S, D)."""
    stage: Callable[[jax.Array, Weights, Any, Any], tuple[tuple[jax.Array, jax.Array], Any]]
    """Function (residual stream, layers, constants, micro-batch) -> ((residual stream, term of the
    loss), counts), of a part of the layers. Counts have a leading dim for the layer, too."""
    loss: Callable[[Weights, jax.Array, Any], jax.Array]
    """Function (weights, residual stream after all layers, micro-batch) -> loss."""
    weights: Weights
    """Trained weights outside of the layers."""
    layers: Weights
    """Trained weights of the layers, (L, ...)."""
    constants: Any
    """Other arrays of the layers, (L, ...)."""


class Sums(NamedTuple):
    """Sums over micro-batches."""

    loss: jax.Array
    counts: Any
    """Those of the stages; None for no counts."""
    gradients: Weights


class _State(NamedTuple):
    """What a tick takes from the one before."""

    streams: jax.Array
    """Residual streams (Y, B, S, D), which the stages apply their layers to next."""
    gradients: jax.Array
    """Gradients (Y, B, S, D) of the streams that they differentiated last, which are sent back."""
    kept: list[jax.Array]
    """What stages keep of tick u, at place u modulo s, (s, Y, ...)."""
    sums: Sums
    """Its counts are (Y, L / Y, ...)."""


def sums_over_stages(
    parts: Parts, micro_batches: Any, placed: Callable[[Weights], Weights], *, unroll: bool
) -> Sums:
    """Returns the sums over micro-batches, whose arrays have a leading dim M.

    `placed` constrains the layout of all gradients.
    """
    loop, waits = _Loop.of(parts, micro_batches, placed), stages() - 1
    number_of_ticks = pipeline.ticks(stages(), loop.micro, rounds=1) + waits
    ticks, state = jnp.arange(number_of_ticks), loop.start()
    for body, of_body in (
        (loop.fill, ticks[:waits]),
        (loop.alternate, ticks[waits:-waits]),
        (loop.drain, ticks[-waits:]),
    ):
        state, _ = jax.lax.scan(body, state, of_body, unroll=unroll)
    return loop.finish(state, number_of_ticks)


@dataclass(frozen=True)
class _Loop:
    """The ticks, of three kinds. Each returns the state and, for `jax.lax.scan`, None."""

    parts: Parts
    micro_batches: Any
    placed: Callable[[Weights], Weights]
    passes: TwoPasses
    """Those of a stage."""
    counts: Any
    """Shapes of a stage's counts."""

    @classmethod
    def of(cls, parts: Parts, micro_batches: Any, placed: Callable[[Weights], Weights]) -> "_Loop":
        """Returns the loop, for which it traces a stage."""
        one = jax.tree.map(lambda x: _shape(x, x.shape[1:]), micro_batches)
        x_BSD = jax.eval_shape(parts.embed, parts.weights, one)
        of_one = jax.tree.map(
            lambda x: _shape(x, (len(x) // stages(), *x.shape[1:])),
            (parts.layers, parts.constants),
        )
        passes = two_passes(parts.stage, x_BSD, *of_one, one)
        _, counts = jax.eval_shape(parts.stage, x_BSD, *of_one, one)
        return cls(parts, micro_batches, placed, passes, counts)

    @property
    def micro(self) -> int:
        """The number of micro-batches."""
        return len(jax.tree.leaves(self.micro_batches)[0])

    def start(self) -> _State:
        """Returns the state before the first tick."""

        def zeros(*dims: int, of: jax.ShapeDtypeStruct) -> jax.Array:
            return jnp.zeros((*dims, stages(), *of.shape), of.dtype)

        none_YBSD = of_activations(zeros(of=self.passes.stream))
        places = pipeline.kept_ticks(stages(), self.micro)
        kept = [_of_places(zeros(places, of=one)) for one in self.passes.kept]
        counts = jax.tree.map(lambda one: of_stages(zeros(of=one)), self.counts)
        gradients = jax.tree.map(jnp.zeros_like, {**self.parts.weights, **self.parts.layers})
        sums = Sums(jnp.float32(0), counts, self.placed(gradients))
        return _State(self._with_first(none_YBSD, 0), none_YBSD, kept, sums)

    def fill(self, state: _State, tick: jax.Array) -> tuple[_State, None]:
        """Runs forward passes."""
        return self._forward(state, tick)[0], None

    def alternate(self, state: _State, tick: jax.Array) -> tuple[_State, None]:
        """Runs forward passes, computes the loss after the last stage, and runs backward passes."""
        state, x_YBSD = self._forward(state, tick)
        last = stages() - 1
        of_loss = jax.value_and_grad(self.parts.loss, argnums=(0, 1))
        loss, (gradients, gradient_BSD) = of_loss(
            self.parts.weights, _of_stage(x_YBSD, last), self._of_one(tick - last)
        )
        state = self._backward(state, tick, gradient_BSD)
        sums = self._added(state.sums, gradients)
        return state._replace(sums=sums._replace(loss=sums.loss + loss)), None

    def drain(self, state: _State, tick: jax.Array) -> tuple[_State, None]:
        """Runs backward passes."""
        return self._backward(state, tick, 0), None

    def finish(self, state: _State, tick: int) -> Sums:
        """Returns the sums after the last tick."""
        sums = self._added(state.sums, self._of_embedding(state, jnp.int32(tick)))
        counts = jax.tree.map(lambda x_YLx: x_YLx.reshape(-1, *x_YLx.shape[2:]), sums.counts)
        return sums._replace(counts=counts)

    def _forward(self, state: _State, tick: jax.Array) -> tuple[_State, jax.Array]:
        """Returns the state, and the residual streams after all stages."""
        number_Y = tick - jnp.arange(stages())
        forward = on_stages(self.passes.forward, (OWN, LAYERS, LAYERS, OWN), (OWN, OWN, OWN))
        (x_YBSD, _), counts, kept = forward(
            state.streams, self.parts.layers, self.parts.constants, self._of_each(number_Y)
        )
        x_YBSD, is_real_Y = of_activations(x_YBSD), self._is_real(number_Y)
        counts = jax.tree.map(
            lambda total_Yx, x_Yx: total_Yx + _masked(is_real_Y, x_Yx), state.sums.counts, counts
        )
        kept = [
            _of_places(jax.lax.dynamic_update_index_in_dim(x_sYx, x_Yx, tick % len(x_sYx), 0))
            for x_sYx, x_Yx in zip(state.kept, kept, strict=True)
        ]
        sent_YBSD = passed_on(x_YBSD, [(stage, stage + 1) for stage in range(stages() - 1)])
        streams = self._with_first(sent_YBSD, tick + 1)
        sums = state.sums._replace(counts=counts)
        return state._replace(streams=streams, kept=kept, sums=sums), x_YBSD

    def _backward(self, state: _State, tick: jax.Array, last_BSD: jax.Array | int) -> _State:
        """Returns the state; `last_BSD` is the gradient of the last stage's residual stream."""
        last, stage_Y = stages() - 1, jnp.arange(stages())
        began_Y = tick - 2 * (last - stage_Y)
        number_Y = began_Y - stage_Y
        # Sent here and not in the tick before, they are on their way during the forward passes.
        sent_YBSD = passed_on(state.gradients, [(stage + 1, stage) for stage in range(last)])
        sums = self._added(state.sums, self._of_embedding(state, tick))
        of_results_YBSD = of_activations(where(stage_Y < last, sent_YBSD, last_BSD))
        of_terms_Y = of_stages(self._is_real(number_Y).astype(jnp.float32))
        backward = on_stages(self.passes.backward, (OWN, OWN, LAYERS, LAYERS, OWN), (OWN, LAYERS))
        gradient_YBSD, of_layers = backward(
            [_of_tick(x_sYx, began_Y) for x_sYx in state.kept],
            (of_results_YBSD, of_terms_Y),
            self.parts.layers,
            self.parts.constants,
            self._of_each(number_Y),
        )
        sums = self._added(sums, of_layers)
        return state._replace(gradients=of_activations(gradient_YBSD), sums=sums)

    def _with_first(self, x_YBSD: jax.Array, number: jax.Array | int) -> jax.Array:
        """Returns residual streams, with that of a micro-batch's embeddings on the first stage."""
        first_BSD = self.parts.embed(self.parts.weights, self._of_one(number))
        return of_activations(where(jnp.arange(stages()) > 0, x_YBSD, first_BSD))

    def _of_embedding(self, state: _State, tick: jax.Array) -> Weights:
        """Returns gradients of embeddings, from that of the first stage's stream a tick before."""
        micro_batch = self._of_one(tick - 1 - 2 * (stages() - 1))
        _, backward = jax.vjp(lambda x: self.parts.embed(x, micro_batch), self.parts.weights)
        return backward(_of_stage(state.gradients, 0))[0]

    def _added(self, sums: Sums, gradients: Weights) -> Sums:
        added = {name: sums.gradients[name] + one for name, one in gradients.items()}
        return sums._replace(gradients=self.placed({**sums.gradients, **added}))

    def _is_real(self, number_Y: jax.Array) -> jax.Array:
        return (number_Y >= 0) & (number_Y < self.micro)

    def _of_each(self, number_Y: jax.Array) -> Any:
        """Returns a micro-batch for each stage: any where none has this number."""
        chosen_Y = jnp.clip(number_Y, 0, self.micro - 1)
        return jax.tree.map(lambda x_Mx: of_stages(x_Mx[chosen_Y]), self.micro_batches)

    def _of_one(self, number: jax.Array | int) -> Any:
        """Returns a micro-batch: any if none has this number."""
        chosen = jnp.clip(number, 0, self.micro - 1)
        return jax.tree.map(lambda x_Mx: x_Mx[chosen], self.micro_batches)


def _shape(x: jax.Array, dims: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, x.dtype)


def _masked(is_real_Y: jax.Array, x_Yx: jax.Array) -> jax.Array:
    return jnp.where(is_real_Y.reshape(-1, *[1] * (x_Yx.ndim - 1)), x_Yx, 0)


def _of_stage(x_YBSD: jax.Array, stage: int) -> jax.Array:
    """Returns the activations of a stage to all of them."""
    x_BSD = jnp.sum(where(jnp.arange(stages()) == stage, x_YBSD, 0), axis=0)
    return constrain(x_BSD, "batch", "sequence", None)


def _of_places(x_sYx: jax.Array) -> jax.Array:
    """Constrains what stages keep of several ticks: the compiler lays out the other dims."""
    rest = [PartitionSpec.UNCONSTRAINED] * (x_sYx.ndim - 2)
    return jax.lax.with_sharding_constraint(x_sYx, PartitionSpec(None, AXIS, *rest))


def _of_tick(x_sYx: jax.Array, tick_Y: jax.Array) -> jax.Array:
    """Returns what each stage has kept of its tick."""
    # Before the first micro-batch gets back to a stage, that takes what tick 0 has left.
    place_Y = of_stages(jnp.maximum(tick_Y, 0) % len(x_sYx))

    def of_one(x_sx: jax.Array, place: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(x_sx, place, keepdims=False)

    return jax.vmap(of_one, in_axes=(1, 0), spmd_axis_name=AXIS)(x_sYx, place_Y)
