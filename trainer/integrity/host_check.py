"""Every few steps, all hosts compute the same examples before an update, and must agree.

Each host gathers the parameters on its own devices, computes the gradients of a few examples of the
step, and compares their digests with those of all other hosts. The same program on the same inputs
and the same kind of devices gives the same bits. Nothing that is compared crosses the network, so a
difference belongs to one host: see trainer/contract/planning/host_check.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

from trainer.checkpoint.digests import digest
from trainer.checkpoint.initial_state import InitialState
from trainer.contract.planning.host_check import on_one_host
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.sharding_rules import MESH_AXES
from trainer.contract.protocol.events import WrongHostEvent
from trainer.data.loader import abstract_batch, batch_shardings
from trainer.data.packing import Batch
from trainer.distributed.mesh import parameter_shardings, replicated
from trainer.integrity.errors import UndecidedError, WrongHostError
from trainer.integrity.verdict import Verdict, judge
from trainer.model import Params
from trainer.step import compiler_options
from trainer.step.train_state import TrainState
from trainer.step.train_step import TrainProgram
from trainer.telemetry.metrics import Report

INPUTS = 2
"""Number of values before those of the gradients: digests of the weights and of the examples."""
SHOWN_ARRAYS = 3
"""Number of gradients that a message names."""


class HostCheck:
    """The check of one run. Every process must make the same calls."""

    def __init__(
        self, program: TrainProgram, plan: Plan, start: InitialState, report: Report
    ) -> None:
        """Compiles the program of the check."""
        settings = program.job.integrity
        assert settings
        self._every, self._first_step = settings.replay_every, start.step + 1
        self._checks, self._program, self._report = start.checks, program, report
        host_plan = on_one_host(plan)
        own = Mesh(
            np.array(_sorted(jax.local_devices())).reshape([host_plan.mesh[a] for a in MESH_AXES]),
            MESH_AXES,
            axis_types=(AxisType.Auto,) * len(MESH_AXES),
        )
        self._local = TrainProgram.of(program.job, host_plan, own)
        self._gathered = parameter_shardings(host_plan, _by_host(host_plan.mesh))
        self._batch_shardings = batch_shardings(own)
        self._rows = host_plan.batch.global_batch
        self._trained = [array.name for array in plan.parameters if array.is_trained]
        self._first_rows = jax.jit(self._some_rows, out_shardings=replicated(program.mesh))
        self._compiled = self._compile(host_plan, detector=settings.tpu_detector)

    @property
    def checked_step(self) -> int:
        """The newest step whose state a check has confirmed; 0 before the second check."""
        return self._checks.step or 0

    def is_due(self, step: int) -> bool:
        """Returns whether the hosts are checked before the update of `step`.

        They are after every multiple of the interval, so that a check confirms the state which is
        saved there.
        """
        return step == self._first_step or (step - 1) % self._every == 0

    def check(self, step: int, state: TrainState[jax.Array], batch: Batch) -> None:
        """Compares the hosts, by examples of the batch.

        Raises WrongHostError when hosts are found to compute wrong, UndecidedError when they differ
        and it cannot be decided which ones do.
        """
        first = self._of_all_hosts(state, batch)
        if (first == first[0]).all():
            # What follows, the update of this step too, is confirmed by the next check.
            self._checks.step = step - 1
            return
        verdict = judge(first, self._of_all_hosts(state, batch))
        text = self._described(step, verdict)
        event = WrongHostEvent(
            step=step, hosts=verdict.wrong, suspects=verdict.suspects, message=text
        )
        self._report.wrong_host(event, text)
        if not verdict.wrong:
            raise UndecidedError(text)
        raise WrongHostError(text, is_here=jax.process_index() in verdict.wrong)

    def _of_all_hosts(self, state: TrainState[jax.Array], batch: Batch) -> np.ndarray:
        """Returns what each host has computed, uint32 (hosts, values)."""
        weights = {**(state.frozen_params or {}), **state.params}
        own = {name: self._own(name, array) for name, array in weights.items()}
        rows = self._own_batch(batch)
        step = np.asarray(state.step.addressable_data(0))
        with jax.set_mesh(self._local.mesh):
            values = jax.device_get(self._compiled(own, step, rows))
        return np.asarray(multihost_utils.process_allgather(values))

    def _own(self, name: str, array: jax.Array) -> jax.Array:
        """Returns a whole array on the devices of this host."""
        # One at a time: CPU devices can deadlock in collectives of several programs.
        gathered = jax.block_until_ready(jax.device_put(array, self._gathered[name]))
        parts = [shard.data for shard in gathered.addressable_shards]
        sharding = self._local.parameter_shardings[name]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)

    def _own_batch(self, batch: Batch) -> Batch:
        """Returns the first examples of the step on the devices of this host, (1, B, S)."""
        rows = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), self._first_rows(batch))
        return jax.device_put(rows, self._batch_shardings)

    def _some_rows(self, batch: Batch) -> Batch:
        return jax.tree.map(lambda x: x[:1, : self._rows], batch)

    def _values(self, weights: Params, step: jax.Array, batch: Batch) -> jax.Array:
        """Returns digests of weights, of examples, and of each gradient, uint32 (values,)."""
        trained = {name: weights[name] for name in self._trained}
        base = {name: one for name, one in weights.items() if name not in trained} or None
        gradients = self._local.gradients(TrainState(step, trained, None, None, base), batch)
        inputs = [_total(weights), _total(batch._asdict())]
        return jnp.stack([*inputs, *(digest(gradients[name]) for name in self._trained)])

    def _compile(self, plan: Plan, *, detector: bool) -> Any:
        own = self._local
        weights = {
            array.name: jax.ShapeDtypeStruct(
                array.shape, array.dtype, sharding=own.parameter_shardings[array.name]
            )
            for array in plan.parameters
        }
        batch = jax.tree.map(
            lambda one, sharding: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=sharding),
            abstract_batch(own.job, plan),
            batch_shardings(own.mesh),
        )
        options = compiler_options.of_host_check(own.mesh, detector=detector)
        with jax.set_mesh(own.mesh):
            step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(own.mesh))
            jitted = jax.jit(self._values, out_shardings=replicated(own.mesh))
            return compiler_options.compiled(jitted.lower(weights, step, batch), options)

    def _described(self, step: int, verdict: Verdict) -> str:
        """Returns a sentence for the user."""
        what = ["weights", "examples", *(f"gradient of {name}" for name in self._trained)]
        # Other inputs give other gradients.
        inputs = [what[n] for n in verdict.columns if n < INPUTS]
        names = inputs or [what[n] for n in verdict.columns]
        shown = ", ".join(names[:SHOWN_ARRAYS])
        if len(names) > SHOWN_ARRAYS:
            shown += f" and {len(names) - SHOWN_ARRAYS} more"
        text = f"step {step}: not all hosts have the same numbers ({shown}). "
        hosts = ("host " if len(verdict.suspects) == 1 else "hosts ") + _joined(verdict.suspects)
        if verdict.wrong:
            return f"{text}{hosts} computed wrong. The update was not applied"
        return (
            f"{text}One of {hosts} computes wrong, each repeats its own result, and no majority "
            "shows which one. The update was not applied. `launch resume` on other or more hosts "
            "continues from the last good state"
        )


def _joined(hosts: tuple[int, ...]) -> str:
    return ", ".join(map(str, hosts))


def _sorted(devices: list[Any]) -> list[Any]:
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def _by_host(mesh: dict[str, int]) -> Mesh:
    """Returns a mesh over all devices whose first axis is the host, the others those of `mesh`."""
    devices = np.array(_sorted(jax.devices()))
    shape = (jax.process_count(), *(mesh[axis] for axis in MESH_AXES))
    return Mesh(devices.reshape(shape), ("host", *MESH_AXES))


def _total(arrays: dict[str, jax.Array]) -> jax.Array:
    """Returns one digest of all arrays."""
    return jnp.sum(jnp.stack([digest(array) for array in arrays.values()]), dtype=jnp.uint32)
