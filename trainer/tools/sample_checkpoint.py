"""`python -m trainer.tools.sample_checkpoint STEP_FOLDER --prompt=TEXT`: text from a checkpoint.

Uses all devices of this machine, and prints only the text on standard output. Exits with 1 when the
checkpoint is incomplete or damaged, with 2 when its job cannot run on this machine.
"""

import argparse
import sys

from etils import epath

from trainer.checkpoint.errors import FolderError
from trainer.contract.config.eval import Sample
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.mesh import Mesh
from trainer.contract.planning.plan import Corpus
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import BrokenError, FormatError
from trainer.contract.storage.paths import to_path
from trainer.distributed.quick_exit import quick_exit


def main() -> int:
    """Prints the text that the command line requests."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tools.sample_checkpoint", description=__doc__
    )
    defaults = Sample()
    parser.add_argument("folder", metavar="STEP_FOLDER")
    parser.add_argument("--prompt", default=defaults.prompt)
    parser.add_argument("--tokens", type=int, default=defaults.tokens)
    parser.add_argument("--temperature", type=float, default=defaults.temperature)
    parser.add_argument("--seed", type=int, help="random seed (default: the job's)")
    options = parser.parse_args()
    settings = Sample(prompt=options.prompt, tokens=options.tokens, temperature=options.temperature)
    try:
        print(_write(to_path(options.folder), settings, options.seed))
    except (BrokenError, FolderError) as error:
        print(f"{options.folder}: {error}", file=sys.stderr)
        return 1
    except (ConfigError, PlanError, FormatError) as error:
        print(f"{options.folder}: {error}", file=sys.stderr)
        return 2
    return 0


def _write(folder: epath.Path, settings: Sample, seed: int | None) -> str:
    about = checkpoint_metadata.read(folder)
    if "module" in about.job["model"]:
        raise ConfigError(["model.module: a custom model cannot generate text"])
    import jax

    from trainer.checkpoint.weights import initial, read_params
    from trainer.data import tokenizer
    from trainer.distributed import initialize, mesh
    from trainer.evaluation.generate import Sampler
    from trainer.run_plan import this_machine
    from trainer.step.train_step import TrainProgram

    initialize.configure()
    world = this_machine()
    job = _on(world.devices, Job.model_validate(about.job, strict=False), seed)
    plan = resolve(job, world, Corpus(source=job.data.source, sha256=None))
    devices = mesh.build(plan)
    program = TrainProgram.of(job, plan, devices)
    ours = tokenizer.of(job.data, checkpoint_metadata.trained_tokenizer(folder))
    with jax.set_mesh(devices):
        weights = read_params(folder, about, program)
        if about.base:
            weights |= initial(about.base.source, program, about.base).params
        text = Sampler(program, settings, ours).sample(weights)
    assert text is not None, "this process has all devices"
    return text


def _on(devices: int, job: Job, seed: int | None) -> Job:
    """Returns the job on `devices` devices. Its own mesh, batches and teacher do not matter."""
    data = job.data.model_copy(update={"global_batch": devices, "grad_accum_steps": 1})
    seed = job.seed if seed is None else seed
    changes = {
        "data": data, "mesh": Mesh(data=1), "profile": None, "distill": None, "seed": seed,
    }  # fmt: skip
    return job.model_copy(update=changes)


if __name__ == "__main__":
    quick_exit(main())
