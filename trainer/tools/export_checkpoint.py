"""`python -m trainer.tools.export_checkpoint STEP_FOLDER --to DIR`: exports the weights.

Writes files that `transformers` loads; see trainer/hugging_face. Adapters are merged into their
base model. Exits with 1 when the checkpoint is incomplete or damaged, with 2 when DIR is not empty.
"""

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from etils import epath

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.records import checkpoint_metadata
from trainer.contract.storage.paths import to_path


def main() -> int:
    """Exports the checkpoint named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tools.export_checkpoint", description=__doc__
    )
    parser.add_argument("folder", metavar="STEP_FOLDER")
    parser.add_argument("--to", type=Path, required=True, help="a new or empty folder")
    options = parser.parse_args()
    try:
        _export(to_path(options.folder), options.to)
    except checkpoint_metadata.BrokenError as error:
        print(f"{options.folder}: {error}", file=sys.stderr)
        return 1
    except (FileExistsError, ConfigError, checkpoint_metadata.FormatError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _export(folder: epath.Path, to: Path) -> None:
    from trainer import hugging_face
    from trainer.checkpoint.merge_lora import Merged
    from trainer.checkpoint.weights import Arrays, weights_prefix

    about = checkpoint_metadata.read(folder)
    job = Job.model_validate(about.job, strict=False)
    prefix, trained = weights_prefix(about), checkpoint_metadata.trained_tokenizer(folder)
    arrays = Arrays(folder, about, prefix)
    with Merged.opened(job, about.base, arrays) if about.base else nullcontext(arrays) as weights:
        hugging_face.export(job, weights, to, trained=trained)
    print(f"exported step {about.step} of {job.name} to {to}")


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.exit(main())
