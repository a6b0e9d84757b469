"""A process that reports like the compiler: `python -m MODULE JOB early|misfit END`.

With `early` it prints a preliminary report, and the last one when the file END exists.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from trainer.contract.protocol.reports import CompileReport

POLL_INTERVAL_S = 0.02
EARLY = CompileReport(True, 5, 10, {"temporaries": 5}, 0.1, "")
LAST = CompileReport(True, 4, 10, {"temporaries": 3, "program": 1}, 1.0, "")
MISFIT = CompileReport(False, 15, 10, {"temporaries": 15}, 1.0, "does not fit")


def report(one: CompileReport) -> None:
    print(json.dumps(asdict(one)), flush=True)


def main() -> None:
    kind, end = sys.argv[2:]
    if kind == "misfit":
        return report(MISFIT)
    report(EARLY)
    while not Path(end).exists():
        time.sleep(POLL_INTERVAL_S)
    return report(LAST)


if __name__ == "__main__":
    main()
