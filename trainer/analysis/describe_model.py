"""`python -m trainer.analysis.describe_model JOB_FILE`: the parameters of a custom model.

Prints a ModelDescription as one JSON object on standard output. Output of the user's code goes to
standard error.
"""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.planning.parameter_shapes import ModelDescription
from trainer.contract.planning.planner import PlanError
from trainer.distributed.quick_exit import quick_exit
from trainer.model import custom


def main() -> int:
    """Describes the model of the job file named on the command line."""
    job = load(Path(sys.argv[1]), Job).value
    try:
        with redirect_stdout(sys.stderr):
            found = ModelDescription(parameters=custom.parameters(job))
    except PlanError as error:
        found = ModelDescription(problems=error.problems)
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    quick_exit(main())
