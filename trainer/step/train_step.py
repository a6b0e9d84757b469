"""One optimizer update as a pure function of (state, batch), and the state that it updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from trainer.contract.config.job import Job
from trainer.contract.planning import mesh_layout, pipeline
from trainer.contract.planning.group_sums import sums_by_group
from trainer.contract.planning.local_sums import sums_locally
from trainer.contract.planning.plan import Plan
from trainer.data.loader import batch_shardings
from trainer.data.packing import Batch
from trainer.distributed import mesh as meshes
from trainer.distributed import stop_vote
from trainer.model import AnyNetwork, Network, Params, network_of
from trainer.model.seed import SEED_SHAPE, seed_of
from trainer.model.sharding import scattering_by_rows
from trainer.programs import executables
from trainer.step import compiler_options, local_sums, optimizer
from trainer.step.bookkeeping import of_all_devices
from trainer.step.distillation import Teacher
from trainer.step.expert_biases import balanced, no_load
from trainer.step.group_sums import group_sums
from trainer.step.micro_batch import micro_batch_loss, row_keys_of
from trainer.step.schedule import SCHEDULE_SHAPES, Schedule, learning_rate, schedule_of
from trainer.step.stage_sums import stage_sums
from trainer.step.train_state import Counts, Leaf, StepMetrics, TrainState
from trainer.step.update import HOST, chosen, updated, updated_from_host

Sums = tuple[tuple[jax.Array, Counts], Params]
"""((loss, counts), gradients)."""


@dataclass(frozen=True)
class TrainProgram:
    """A job on a mesh: initializes its state, updates it, and has the sharding of every leaf."""

    job: Job
    mesh: Mesh
    network: AnyNetwork
    rule: optax.GradientTransformation
    parameter_shardings: dict[str, NamedSharding]
    kept_as: dict[str, jnp.dtype]
    """Storage dtype of each parameter that is not trained."""
    fsdp_rows: int
    compute_dtype: jnp.dtype
    sums_locally: bool
    """Whether each device computes the gradients of its own rows: see local_sums.py."""
    sums_by_group: bool
    """Whether each group of devices along `data` does: see group_sums.py."""
    alternates: bool
    """Whether stages run forward and backward passes in turn (1F1B)."""
    teacher: Teacher | None

    @classmethod
    def of(cls, job: Job, plan: Plan, mesh: Mesh) -> "TrainProgram":
        """Returns the program of a job.

        Call it outside `jax.set_mesh`: NNX would take logical axes for axes of the mesh.
        """
        network = network_of(job, plan, executables.value)
        rule = optimizer.make(job, plan.trained)
        placed = meshes.parameter_shardings(plan, mesh)
        kept_as = {one.name: jnp.dtype(one.dtype) for one in plan.parameters if not one.is_trained}
        rows = mesh_layout.fsdp_rows(plan.world, plan.mesh)
        locally, by_group = sums_locally(job, plan), sums_by_group(job, plan)
        teacher = Teacher.of(job, plan, mesh)
        dtype, alternates = jnp.dtype(plan.compute_dtype), pipeline.alternates(plan)
        return cls(
            job, mesh, network, rule, placed, kept_as, rows, dtype, locally, by_group, alternates,
            teacher,
        )  # fmt: skip

    @property
    def is_pipelined(self) -> bool:
        """Whether micro-batches pass through stages of layers."""
        return self.mesh.shape["pipeline"] > 1

    @cached_property
    def shardings(self) -> TrainState[NamedSharding]:
        """The sharding of every leaf of the state."""
        whole = meshes.replicated(self.mesh)
        params, base = _parted(self.parameter_shardings, self.kept_as)
        memory = HOST if self.job.optimizer.offload_moments else None
        moments = optimizer.shardings(
            self.shapes.optimizer, self.shapes.params, params, whole, memory
        )
        average = None if self.job.optimizer.ema_decay is None else params
        teacher = self.teacher and self.teacher.shardings
        return TrainState(whole, params, moments, average, base, teacher)

    def initial_state(self) -> TrainState[jax.Array]:
        """Returns the state at step 0, created in shards: no device ever holds a whole array.

        It has no teacher yet, whose weights are read from its checkpoint.
        """
        with jax.set_mesh(self.mesh):
            return self.compiled_initialization()(self.seed)

    def compiled_initialization(self) -> jax.stages.Compiled:
        """Compiles the function of `seed` that returns the state at step 0."""
        # Runs once: on CPU the compiler's optimizations would take longer than they save.
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        options = {"xla_backend_optimization_level": 0} if on_cpu else None
        with jax.set_mesh(self.mesh):
            shardings = self.shardings._replace(teacher=None)
            initial = jax.jit(
                self._initial,
                in_shardings=meshes.replicated(self.mesh),
                out_shardings=shardings,
                compiler_options=options,
            )
            return executables.compiled(initial, SEED_SHAPE)

    def fresh_state(self, params: Params) -> TrainState[jax.Array]:
        """Returns the state at step 0 with given parameters, which are donated, not copied.

        Adapters that are not among them are initialized from the job's seed.
        """

        def fresh(params: Params, seed: jax.Array) -> TrainState[jax.Array]:
            new = self.network.initial(seed) if self.kept_as else {}
            return self._fresh({**new, **params})

        shardings = self.shardings._replace(teacher=None)
        with jax.set_mesh(self.mesh):
            return jax.jit(fresh, out_shardings=shardings, donate_argnums=0)(params, self.seed)

    def step_function(
        self,
    ) -> Callable[
        [Schedule[jax.Array], TrainState[jax.Array], Batch, jax.Array, jax.Array],
        tuple[TrainState[jax.Array], StepMetrics],
    ]:
        """Returns the jitted `step`. It donates the state and returns it with the same shardings.

        The first argument is `schedule`.
        """
        batch = batch_shardings(self.mesh)
        whole = meshes.replicated(self.mesh)
        return jax.jit(
            self.step,
            in_shardings=(whole, self.shardings, batch, stop_vote.sharding(self.mesh), whole),
            out_shardings=(self.shardings, whole),
            donate_argnums=1,
        )

    @cached_property
    def seed(self) -> jax.Array:
        """The job's seed on all devices."""
        return self.on_all_devices(seed_of(self.job))

    @cached_property
    def schedule(self) -> Schedule[jax.Array]:
        """The job's learning rates: scalars on all devices."""
        return jax.tree.map(self.on_all_devices, schedule_of(self.job))

    @cached_property
    def no_limits(self) -> jax.Array:
        """The limits of a step whose update is applied if it is finite: see `step`."""
        return self.on_all_devices(np.full(2, np.inf, np.float32))

    def on_all_devices(self, value: np.ndarray) -> jax.Array:
        """Returns a value that every process has as an array on all devices."""
        whole = meshes.replicated(self.mesh)
        return jax.make_array_from_callback(value.shape, whole, lambda _: value)

    def gradient_function(self) -> Callable[[TrainState[jax.Array], Batch], Params]:
        """Returns a jitted function: the gradients of a global batch, summed over its targets.

        `step` computes the same before it clips them.
        """

        shardings = (self.shardings, batch_shardings(self.mesh))
        return jax.jit(self.gradients, in_shardings=shardings, out_shardings=self.shardings.params)

    def gradients(self, state: TrainState[jax.Array], batch: Batch) -> Params:
        """Returns the gradients of a global batch, summed over its targets."""
        with scattering_by_rows(self.fsdp_rows):
            return self._sums(state, batch)[1]

    def compiled_step(
        self, batch: Batch, options: Mapping[str, str] = MappingProxyType({})
    ) -> jax.stages.Compiled:
        """Compiles the step for batches like `batch`, of which only shapes are used.

        `options` are further ones of the compiler.
        """
        with jax.set_mesh(self.mesh):
            requests = jax.ShapeDtypeStruct((self.mesh.size,), jnp.int32)
            limits = jax.ShapeDtypeStruct((2,), jnp.float32)
            return executables.compiled(
                self.step_function(), SCHEDULE_SHAPES, self.shapes, batch, requests, limits,
                finish=lambda lowered: compiler_options.compiled(
                    lowered,
                    {
                        **compiler_options.of_step(self.mesh),
                        **options,
                    },
                ),
            )  # fmt: skip

    @cached_property
    def shapes(self) -> TrainState[jax.ShapeDtypeStruct]:
        """The state's shapes and dtypes; traces the initialization once, and computes nothing."""
        found = executables.value("shapes", lambda: jax.eval_shape(self._initial, SEED_SHAPE))
        return found._replace(teacher=self.teacher and self.teacher.shapes)

    def _initial(self, seed: jax.Array) -> TrainState[jax.Array]:
        return self._fresh(self.network.initial(seed))

    def _fresh(self, params: Params) -> TrainState[jax.Array]:
        params, base = _parted(params, self.kept_as)
        base = base and {name: array.astype(self.kept_as[name]) for name, array in base.items()}
        average = None if self.job.optimizer.ema_decay is None else jax.tree.map(jnp.copy, params)
        return TrainState(jnp.int32(0), params, self.rule.init(params), average, base)

    def step(
        self,
        schedule: Schedule[jax.Array],
        state: TrainState[jax.Array],
        batch: Batch,
        requests: jax.Array,
        limits: jax.Array,
    ) -> tuple[TrainState[jax.Array], StepMetrics]:
        """Returns the state after a global batch (M, B, S), and the step's metrics.

        `schedule` has the learning rates.
        `requests` are the stop requests of all devices, int32 (devices,): see `StopVote`. The
        gradient is that of the mean loss over all targets of the global batch, clipped to
        `clip_norm`. `limits` are the largest loss and gradient norm of an update, float32 (2,).
        When one is exceeded or not finite, only `step` of the state changes, and `metrics.applied`
        is False.
        """
        with scattering_by_rows(self.fsdp_rows):
            (loss, counts), grads = self._sums(state, batch)
        tokens = jnp.maximum(counts.targets, 1)  # a small batch of conversations may have no answer
        # Values of the mean over all targets. One collective sums loss and number of targets.
        with jax.named_scope("clipping"):
            loss, grad_norm = loss / tokens, self._norm(grads) / tokens
        applied = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        applied &= (loss <= limits[0]) & (grad_norm <= limits[1])
        settings = self.job.optimizer
        rate = learning_rate(schedule, state.step, is_cosine=settings.schedule == "cosine")
        scale = optimizer.clipping(settings, grad_norm) / tokens
        with jax.named_scope("optimizer"):
            new = self._updated(state, grads, scale, rate, counts.load, applied)
        # `never` is always 0. It orders the collectives below after the loop over micro-batches,
        # whose collectives they could overtake: see the model's parameters.py.
        never = (grad_norm < -1).astype(requests.dtype)
        with jax.named_scope("bookkeeping"):
            examples, request = of_all_devices(self.mesh, batch.examples, requests + never)
        of_pairs = (counts.margin, counts.correct)
        rewards = [total if total is None else total / tokens for total in of_pairs]
        metrics = StepMetrics(loss, grad_norm, rate, tokens, examples, applied, request, *rewards)
        return new, metrics

    def _updated(
        self,
        state: TrainState[jax.Array],
        grads: Params,
        scale: jax.Array,
        rate: jax.Array,
        load: jax.Array | None,
        applied: jax.Array,
    ) -> TrainState[jax.Array]:
        """Returns the state after an update by `scale` times the gradients, if it is `applied`.

        `load` is that of the experts, (L, E), or None.
        """
        settings = self.job.optimizer
        update = updated_from_host if settings.offload_moments else updated
        grads = jax.tree.map(lambda grad: scale * grad, grads)
        params, moments = update(self.rule, grads, state.params, state.optimizer, rate, applied)
        params = chosen(applied, balanced(self.job, params, load), params)
        average = state.average and chosen(
            applied,
            optimizer.update_ema(settings, state.average, params, state.step),
            state.average,
        )
        # The schedule goes on after an update that is not applied.
        return state._replace(
            step=state.step + 1, params=params, optimizer=moments, average=average
        )

    def _sums(self, state: TrainState[jax.Array], batch: Batch) -> Sums:
        """Returns loss, counts and gradients, summed over the global batch's targets or pairs."""
        if self.sums_locally:
            return self._sums_of_devices(state, batch)
        if self.alternates:
            return self._sums_of_stages(state, batch)
        if not self.sums_by_group:
            return self._sums_of_rows(state, batch)
        state = state._replace(optimizer=None, average=None)
        totals, grads = group_sums(self._sums_of_rows, state, batch, self.compute_dtype)
        return totals, self._placed(grads)

    def _sums_of_devices(self, state: TrainState[jax.Array], batch: Batch) -> Sums:
        def sums(weights: Params, batch: Batch, step: jax.Array) -> Sums:
            params, base = _parted(weights, self.kept_as)
            return self._sums_of_rows(TrainState(step, params, None, None, base), batch)

        weights = {**(state.frozen_params or {}), **state.params}
        return local_sums.local_sums(
            self.mesh, self.parameter_shardings, sums, weights, batch, state.step
        )

    def _sums_of_rows(self, state: TrainState[jax.Array], batch: Batch) -> Sums:
        def total_loss(params: Params, micro: Batch) -> tuple[jax.Array, Counts]:
            weights = {**(state.frozen_params or {}), **params}
            return micro_batch_loss(
                self.network, weights, micro, state.step, self.teacher, state.teacher
            )

        gradient = jax.value_and_grad(total_loss, has_aux=True)
        if self.is_pipelined:
            sums, grads = gradient(state.params, batch)
            return sums, self._placed(grads)
        if batch.tokens.shape[0] == 1:
            first = jax.tree.map(lambda x: x[0], batch)
            sums, grads = gradient(state.params, first)
            return sums, self._placed(grads)

        def accumulate(total: Sums, micro: Batch) -> tuple[Sums, None]:
            sums, grads = jax.tree.map(jnp.add, total, gradient(state.params, micro))
            return (sums, self._placed(grads)), None

        zero = jnp.float32(0)
        weights = {**(state.frozen_params or {}), **state.params}
        none = Counts(zero, zero, zero) if self.job.dpo else Counts(zero, load=no_load(weights))
        zeros = ((zero, none), jax.tree.map(jnp.zeros_like, state.params))
        return jax.lax.scan(accumulate, zeros, batch)[0]

    def _sums_of_stages(self, state: TrainState[jax.Array], batch: Batch) -> Sums:
        assert isinstance(self.network, Network), "a custom model has no stages"
        keys = row_keys_of(self.network, state.step, batch)
        frozen = state.frozen_params or {}
        found = stage_sums(self.network, state.params, frozen, batch, keys, self._placed)
        counts = Counts(jnp.sum(batch.weights), load=found.counts)
        return (found.loss, counts), found.gradients

    def _norm(self, grads: Params) -> jax.Array:
        """Returns the norm of all gradients together."""
        if self.sums_locally:
            return local_sums.norm(self.mesh, self.parameter_shardings, grads)
        return optax.tree.norm(grads)

    def _placed(self, grads: Params) -> Params:
        """Shards gradients like their parameters, so that they are summed directly into shards."""
        if self.sums_locally:
            return grads
        specs = {name: sharding.spec for name, sharding in self.shardings.params.items()}
        return jax.lax.with_sharding_constraint(grads, specs)


def _parted(
    leaves: dict[str, Leaf], kept_as: Mapping[str, Any]
) -> tuple[dict[str, Leaf], dict[str, Leaf] | None]:
    """Splits leaves into those that are trained and the rest, which is None when it is empty."""
    base = {name: leaf for name, leaf in leaves.items() if name in kept_as}
    return {n: leaf for n, leaf in leaves.items() if n not in kept_as}, base or None
