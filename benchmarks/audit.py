"""How reliably an audit finds a flipped bit, and whether clean steps raise an alarm.

The steps, their digests and the procedure are those of `launch audit`; a host is one of four CPU
devices of this process, which is cheap. `audit_launches.py` measures the same with real hosts.

`python -m benchmarks.audit flips --count 20`: each time, one of four hosts flips a random bit of a
random gradient at a random step, whenever it does that step. The step and the host must be named.

`python -m benchmarks.audit clean --steps 336`: clean steps on three meshes, replayed on their own
mesh, where no bit may differ, and on the two others, where rounding must explain all differences.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import jax

from launcher.audit.audit import Verdict, audit
from tests.support.audited_hosts import (
    EVERY,
    HOSTS,
    AuditedHosts,
    Flip,
    install_flips,
    recorded_by,
)
from tests.support.harness import Bench, bench
from tests.support.jobs import job_of
from trainer.contract.planning import local_sums

STEPS = 40
BITS = range(28)
"""Bits of the flips. Higher ones overflow, which ends the run by itself."""
MOST_STEPS_ELSEWHERE = 100
"""Most steps of a replay on another mesh."""
MESHES: Mapping[str, dict[str, int]] = {
    "fsdp 4": {"data": 1, "fsdp": 4, "tensor": 1},
    "data 2, fsdp 2": {"data": 2, "fsdp": 2, "tensor": 1},
    "fsdp 2, tensor 2": {"data": 1, "fsdp": 2, "tensor": 2},
}


def main() -> None:
    """Runs one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("flips", "clean"))
    parser.add_argument("--count", type=int, default=20, help="number of flips")
    parser.add_argument("--steps", type=int, default=336, help="clean steps on each mesh")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", HOSTS)
    if options.what == "flips":
        _flips(options.count, random.Random(options.seed))
    else:
        _clean(options.steps)


def _flips(count: int, draw: random.Random) -> None:
    install_flips()
    made, found = _bench(MESHES["fsdp 4"], STEPS), Counter[str]()
    for number in range(count):
        step, host, bit = (
            draw.randrange(EVERY + 1, STEPS + 1),
            draw.randrange(HOSTS),
            draw.choice(BITS),
        )
        code = (draw.randrange(32) << 13) | (bit << 8) | draw.randrange(256)
        hosts = AuditedHosts(made, made, Flip(host, step, code))
        recorded = recorded_by(hosts, EVERY + 1, STEPS)
        verdict = audit(recorded, hosts, is_same_program=True)
        outcome = _outcome(verdict, hosts)
        found[outcome] += 1
        print(
            f"{number + 1:3} bit {bit:2} at step {step:2} on host {host}: {outcome}, "
            f"{hosts.count} replays ({verdict.text})",
            flush=True,
        )
    print(f"{dict(found)}; log2 of the range is {math.log2(STEPS - EVERY):.0f}")


def _outcome(verdict: Verdict, hosts: AuditedHosts) -> str:
    flip = hosts.flip
    assert flip
    if verdict.difference is None:
        return "no effect"
    is_found = (verdict.difference.step, verdict.suspects) == (flip.step, (flip.host,))
    return "found" if is_found else "NOT FOUND"


def _clean(steps: int) -> None:
    made = {name: _bench(mesh, steps) for name, mesh in MESHES.items()}
    local_sums.MOST_BYTES = 0  # as in a replay with reordered sums
    split = {name: _bench(mesh, steps, grad_accum_steps=2) for name, mesh in MESHES.items()}
    recorded = {name: recorded_by(AuditedHosts(one, one), 1, steps) for name, one in made.items()}
    for first, other in product(MESHES, MESHES):
        hosts, run = AuditedHosts(made[other], split[other]), recorded[first]
        if first != other:
            run = replace(run, last=min(steps, MOST_STEPS_ELSEWHERE))
        verdict = audit(run, hosts, is_same_program=first == other)
        rounding = verdict.rounding
        size = f", {rounding.largest:.1e} of {rounding.tolerance:.1e}" if rounding else ""
        print(f"{run.last} steps on {first}, replayed on {other}: {verdict.kind}{size}", flush=True)


def _bench(mesh: dict[str, int], steps: int, **data: int) -> Bench:
    return bench(job_of(steps=steps, mesh=mesh, data=data), devices=4)


if __name__ == "__main__":
    main()
