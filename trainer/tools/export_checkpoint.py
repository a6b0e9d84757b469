"""`python -m trainer.tools.export_checkpoint STEP_FOLDER --to DIR`: exports the weights.

Writes files that `transformers` loads; see trainer/hugging_face. Adapters are merged into their
base model. Exits with 1 when the checkpoint is incomplete or damaged, with 2 when DIR is
not empty, unless it has this very export.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.records import checkpoint_metadata
from trainer.contract.storage.paths import AnyPath, to_path
from trainer.distributed.quick_exit import quick_exit


def main() -> int:
    """Exports the checkpoint named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tools.export_checkpoint", description=__doc__
    )
    parser.add_argument("folder", metavar="STEP_FOLDER")
    parser.add_argument("--to", type=Path, required=True, help="a new or empty folder")
    options = parser.parse_args()
    try:
        export_hugging_face(options.folder, options.to)
        about = checkpoint_metadata.read_about(to_path(options.folder))
    except checkpoint_metadata.BrokenError as error:
        print(f"{options.folder}: {error}", file=sys.stderr)
        return 1
    except (FileExistsError, ConfigError, checkpoint_metadata.FormatError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"step {about.step} of {about.job['name']} is exported to {options.to}")
    return 0


def export_hugging_face(checkpoint: AnyPath | str, to: Path) -> None:
    """Exports the weights of a checkpoint as files that `transformers` loads.

    Leaves a folder as it is that already has the whole export of this checkpoint.

    Args:
      checkpoint: the folder of one saved step, which may be in a bucket.
      to: a folder that is new or empty, or has what an interrupted export has left.

    Raises:
      BrokenError: when the checkpoint is incomplete or damaged.
      FileExistsError: when `to` has anything else.
      ConfigError: when Hugging Face does not support the model.
    """
    from trainer import hugging_face

    folder = to_path(str(checkpoint))
    if hugging_face.source_of(to) == str(folder):
        return
    trained = checkpoint_metadata.trained_tokenizer(folder)
    with _opened(folder) as (job, weights):
        hugging_face.export(job, weights, to, trained=trained, source=str(folder))


def load_weights(checkpoint: AnyPath | str) -> dict[str, np.ndarray]:
    """Returns the parameters of a checkpoint by name, in host memory; adapters are merged.

    Args:
      checkpoint: the folder of one saved step, which may be in a bucket.

    Raises:
      BrokenError: when the checkpoint is incomplete or damaged.
    """
    with _opened(to_path(str(checkpoint))) as (_, weights):
        return dict(weights)


@contextmanager
def _opened(folder: AnyPath) -> Iterator[tuple[Job, Mapping[str, np.ndarray]]]:
    """Yields the job and the parameters of a checkpoint, which are read when they are accessed."""
    from trainer.checkpoint.merge_lora import Merged
    from trainer.checkpoint.weights import Arrays, weights_prefix

    about = checkpoint_metadata.read(folder)
    job = Job.model_validate(about.job, strict=False)
    arrays = Arrays(folder, about, weights_prefix(about))
    with Merged.opened(job, about.base, arrays) if about.base else nullcontext(arrays) as weights:
        yield job, weights


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    quick_exit(main())
