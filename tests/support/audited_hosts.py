"""An audit whose hosts are four CPU devices of this process, with a fault that follows a host."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from launcher.audit.differences import Steps
from launcher.audit.hosts import Order
from launcher.audit.recorded import Recorded, RecordedStep
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.fault_injection import GRADIENTS
from tests.support.harness import Bench
from trainer.checkpoint.facts import array_facts
from trainer.checkpoint.tree import flatten
from trainer.contract.planning.plan import Replay
from trainer.contract.records import replay_file
from trainer.distributed.mesh import Device
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.integrity.replay import Recorder
from trainer.step import train_step

HOSTS, EVERY = 4, 8
"""Number of hosts, and steps between the checkpoints of a run."""
SPACE: dict[str, Any] = {"os": os}

_compiled_gradients: dict[int, Any] = {}
"""The gradients' program of each bench, compiled once."""


def install_flips() -> None:
    """Changes the training step: hosts flip the bits that `AuditedHosts.fault` says."""
    exec(GRADIENTS.format(code=""), SPACE)
    SPACE["change"](train_step)


@dataclass(frozen=True)
class Flip:
    """A bit that a host flips whenever it does a step."""

    host: int
    step: int
    code: int


class AuditedHosts:
    """Four devices that do the work of four hosts, in any order."""

    hosts, can_move = HOSTS, True

    def __init__(self, made: Bench, reordered: Bench, flip: Flip | None = None) -> None:
        self.made, self._reordered, self.flip = made, reordered, flip
        SPACE["fault"] = self.fault
        self.order: Order = tuple(range(HOSTS))
        self.start, self.start_step = made.first, 0
        self.count = 0

    def fault(self, step: int, device: Device) -> int:
        """Returns the code of the fault in a step that a host does; 0 for none."""
        flip = self.flip
        if flip is None or step != flip.step or self.order[device.id] != flip.host:
            return 0
        return 1 + flip.code

    def run(self, last: int) -> tuple[dict[int, Any], dict[int, Any]]:
        """Does steps in the usual order; returns the metrics and the states at checkpoints."""
        state, metrics, saved = self.made.initial(), {}, {}
        batches = self.made.loader.training(1)
        for step in range(1, last + 1):
            state, one = self.made.compiled(state, next(batches))
            metrics[step] = jax.device_get(one)
            if step % EVERY == 0:
                saved[step] = (jax.device_get(state), array_facts(flatten(state)))
        return metrics, saved

    def replay(self, first: int, last: int, order: Order, *, reordered: bool = False) -> Steps:
        """Returns what steps have computed."""
        self.count += 1
        self.order = order
        made = self._reordered if reordered else self.made
        with tempfile.TemporaryDirectory() as folder:
            replay = Replay(checkpoint=None, first_step=first)
            recorder = Recorder(made.program, replay, Path(folder), process=0)
            recorder._gradients = _compiled_gradients.get(id(made))
            nothing = StopVote(made.program.mesh).array(StopRequest.NOTHING)
            step = recorder.recording(lambda state, batch, *_: made.compiled(state, batch))
            state = jax.device_put(self.start, made.program.shardings)
            batches = made.loader.training(self.start_step + 1)
            with jax.set_mesh(made.program.mesh):
                for _ in range(self.start_step, last):
                    state, _ = step(state, next(batches), nothing, made.program.no_limits)
            _compiled_gradients[id(made)] = recorder._gradients
            return replay_file.read(Path(folder))


def recorded_by(hosts: AuditedHosts, first: int, last: int) -> Recorded:
    """Does the run that is audited, and returns what it records."""
    metrics, saved = hosts.run(last)
    job = hosts.made.program.job
    if first > 1:
        hosts.start, hosts.start_step = saved[first - 1][0], first - 1
    return Recorded(
        name="run",
        first=first,
        last=last,
        start=None,
        steps={n: _step(one) for n, one in metrics.items() if n >= first},
        checkpoint_folder="",
        checkpoints={n: about_of(job, n, arrays=s[1]) for n, s in saved.items() if n >= first},
        job=job,
        plans={1: hosts.made.plan},
        programs=(),
        corpus_sha256=None,
    )


def _step(metrics: train_step.StepMetrics) -> RecordedStep:
    return RecordedStep(
        loss=float(metrics.loss),
        grad_norm=float(metrics.grad_norm),
        examples=f"{int(metrics.examples):08x}",
        attempt=1,
    )
