"""`python -m trainer.tools.explain_step RUN_FOLDER --step=N`: the examples with the highest loss.

Restores the newest checkpoint before the step, and computes the steps after it again. Uses all
devices of this machine, and prints a line of JSON, a StepExamples. Exits with 1 when the checkpoint
is damaged, with 2 when the state before the step cannot be computed here.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from trainer.checkpoint.errors import FolderError
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, load
from trainer.contract.planning.planner import PlanError
from trainer.contract.records.checkpoint_metadata import BrokenError, FormatError
from trainer.contract.storage.corpus import DataError
from trainer.distributed.quick_exit import quick_exit


def main() -> int:
    """Prints the examples of the step that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tools.explain_step", description=__doc__
    )
    parser.add_argument("folder", metavar="RUN_FOLDER", type=Path)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--top", type=int, default=5, help="number of examples")
    options = parser.parse_args()
    try:
        job = load(options.folder / "job.yaml", Job).value
        from trainer.tools.step_examples import explain

        print(json.dumps(asdict(explain(options.folder, job, options.step, options.top))))
    except (BrokenError, FolderError) as error:
        print(f"{options.folder}: {error}", file=sys.stderr)
        return 1
    except (ConfigError, PlanError, FormatError, DataError) as error:
        print(f"{options.folder}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    quick_exit(main())
