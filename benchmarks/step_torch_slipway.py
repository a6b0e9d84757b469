"""Slipway's step for step_torch.py, on the CPU devices of this process.

`python -m benchmarks.step_torch_slipway FOLDER [KEY=VALUE ...]` writes the initial weights and the
first batch of the quickstart to FOLDER/start.npz, and its settings to FOLDER/job.json. It then
makes steps on that batch.
"""

import json
import os
import sys
from pathlib import Path

import jax
import numpy as np

from benchmarks.step_torch import serve
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.packing import Batch
from trainer.distributed import mesh
from trainer.distributed.process_env import Environment
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.preflight import prepare_data
from trainer.run_plan import planned
from trainer.step.train_step import TrainProgram
from trainer.telemetry.events import Events

JOB = Path(__file__).parents[1] / "jobs" / "quickstart.yaml"


class Steps:
    """A job's state, and the step that updates it, always on the first batch."""

    def __init__(self, overrides: list[str]):
        environment = Environment.read(os.environ)
        self.job = load(JOB, Job, overrides).value
        tokens = prepare_data(self.job, Events(environment))
        plan = planned(self.job, environment, Path("no-run"))
        devices = mesh.build(plan)
        self.program = TrainProgram.of(self.job, plan, devices)
        loader = BatchLoader(self.job, plan.batch, tokens, batch_shardings(devices))
        self.batch: Batch = next(loader.training(first_step=1))
        self.state = self.program.initial_state()
        self.compiled = self.program.compiled_step(self.batch)
        self._nothing = StopVote(devices).array(StopRequest.NOTHING)

    def make(self, count: int) -> list[float]:
        """Makes steps; returns their losses."""
        program, losses = self.program, []
        for _ in range(count):
            self.state, metrics = self.compiled(
                program.schedule, self.state, self.batch, self._nothing, program.no_limits
            )
            losses.append(metrics.loss)
        jax.block_until_ready(self.state)
        return [float(loss) for loss in losses]

    def write(self, folder: Path) -> None:
        """Writes what another program needs for the same steps."""
        arrays = {f"params.{name}": value for name, value in self.state.params.items()}
        arrays |= {f"batch.{name}": value[0] for name, value in self.batch._asdict().items()}
        np.savez(folder / "start.npz", **jax.device_get(arrays))
        settings = {
            "model": self.job.decoder.model_dump(mode="json"),
            "optimizer": self.job.optimizer.model_dump(mode="json"),
            "steps": self.job.steps,
            "tokens": vocab_size(self.job),
        }
        (folder / "job.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    steps = Steps(sys.argv[2:])
    steps.write(Path(sys.argv[1]))
    serve(steps.make)
