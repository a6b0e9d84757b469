"""`python -m trainer.ahead.keep JOB_FILE PLAN_FILE PROCESS FILE`: compiles for `launch plan`.

Writes the programs of one process of the plan to FILE, and prints a KeptPrograms as JSON.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from trainer.ahead.compile import keep_for
from trainer.contract.config.loader import ConfigError
from trainer.distributed.quick_exit import quick_exit


def main() -> int:
    """Runs the command line; returns its exit code."""
    job, plan, process, path = sys.argv[1:]
    try:
        print(json.dumps(asdict(keep_for(Path(job), Path(plan), int(process), Path(path)))))
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    quick_exit(main())
