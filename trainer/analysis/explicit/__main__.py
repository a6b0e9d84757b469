"""Checks the step of a job under explicit axis types, on devices that need not exist.

    python -m trainer.analysis.explicit JOB_FILE PLAN_FILE

Prints a ShardingReport as one JSON object on standard output.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from trainer.analysis.explicit.step import check_step
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.planning.plan import Plan
from trainer.distributed.quick_exit import quick_exit


def main() -> int:
    """Reads the two files and prints the report."""
    job = load(Path(sys.argv[1]), Job).value
    plan = Plan.model_validate_json(Path(sys.argv[2]).read_text(encoding="utf-8"))
    print(json.dumps(asdict(check_step(job, plan))))
    return 0


if __name__ == "__main__":
    quick_exit(main())
