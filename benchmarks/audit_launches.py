"""How reliably `launch audit` names the step and the host of a flipped bit, with real hosts.

Each time, one of four simulated hosts flips a random bit of a random gradient at a random step,
whenever it does that step. Takes six launches each; `audit.py` measures the same in one process.

`python -m benchmarks.audit_launches --count 20`
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.audited_runs import CLUSTER, JOB
from tests.support.fault_injection import flip_gradient_bit

HOSTS, STEPS, EVERY = 4, 40, 8
BITS = range(4, 28)
"""Bits of the flips. Lower ones are often lost in the moments; higher ones overflow, which ends the
run by itself."""


def main() -> None:
    """Makes the runs, audits them and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20, help="number of flips")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipway-audit-benchmark-") as name:
        folder = Path(name)
        _make_corpus(folder)
        _flips(folder, options.count, random.Random(options.seed))


def _flips(folder: Path, count: int, draw: random.Random) -> None:
    (folder / "job.yaml").write_text(JOB % (STEPS, EVERY))
    found = 0
    for number in range(count):
        host, step = draw.randrange(HOSTS), draw.randrange(EVERY + 1, STEPS + 1)
        fault = draw.randrange(32), draw.choice(BITS), draw.randrange(256)
        own = folder / f"flip-{number}"
        own.mkdir()
        (own / "cache").symlink_to(_shared_cache(folder))
        option = flip_gradient_bit(own, HOSTS, host, step, fault)
        (folder / "cluster.yaml").write_text(CLUSTER % (HOSTS, 1, option))
        began = time.monotonic()
        _launch(folder, ["-c", "cluster.yaml", "job.yaml", f"name=flip-{number}"], 0)
        verdict = _audit(folder, f"flip-{number}")
        at = verdict["difference"] and verdict["difference"]["step"]
        is_found = (at, verdict["suspects"]) == (step, [host])
        found += is_found
        limit = math.log2(verdict["last_step"] - verdict["first_step"] + 1)
        print(
            f"{number + 1:3} bit {fault[1]:2} at step {step:2} on host {host}: "
            f"{'found' if is_found else 'NOT FOUND'} ({verdict['kind']}, step {at}, host "
            f"{verdict['suspects']}, {verdict['replays']} replays, log2 of the range {limit:.1f}), "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"found {found} of {count}")


def _make_corpus(folder: Path) -> None:
    (folder / "corpus").mkdir()
    for letter in "abcdef":
        (folder / "corpus" / f"{letter}.txt").write_text(f"text of {letter} " * 200)


def _shared_cache(folder: Path) -> Path:
    """Returns the cache of compiled programs of all faulty runs: the fault is data, not code."""
    path = folder / "cache"
    path.mkdir(exist_ok=True)
    return path


def _audit(folder: Path, run: str, *words: str) -> dict[str, Any]:
    return json.loads(_launch(folder, ["audit", run, *words, "-o", "json"], 0, 1))


def _launch(folder: Path, words: Sequence[str], *codes: int) -> str:
    """Runs `launch` and returns what it prints. Exits with its errors on any other exit code."""
    ended = subprocess.run(
        [sys.executable, "-m", "launcher", *words], cwd=folder, capture_output=True, text=True
    )
    if ended.returncode not in codes:
        sys.exit(f"launch {' '.join(words)}: exit code {ended.returncode}\n{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
