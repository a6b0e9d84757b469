"""Checks the step of a job under explicit axis types, on devices that need not exist.

    python -m trainer.analysis.explicit JOB_FILE PLAN_FILE

Prints one JSON object on standard output. `explicit` has the findings, and `stopped` the reason why
the backward pass could not be checked ("" when it was).
"""

import json
import sys
from pathlib import Path
from typing import Any

from trainer.analysis.explicit.findings import Finding
from trainer.analysis.explicit.step import check_step
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.planning.plan import Plan


def main() -> int:
    """Reads the two files and prints the findings."""
    job = load(Path(sys.argv[1]), Job).value
    plan = Plan.model_validate_json(Path(sys.argv[2]).read_text(encoding="utf-8"))
    report = check_step(job, plan)
    found = [*map(_as_json, report.findings)]
    print(json.dumps({"explicit": found, "stopped": report.stopped}))
    return 0


def _as_json(found: Finding) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "pass": "backward" if found.backward else "forward",
        "place": [frame._asdict() for frame in found.place],
        "operation": found.operation,
        "from": found.old,
        "to": found.new,
        "times": found.times,
        "bytes": found.bytes,
        "reason": found.reason,
    }


if __name__ == "__main__":
    sys.exit(main())
