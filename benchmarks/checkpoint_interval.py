"""Compares the interval of `checkpoint.every_minutes: auto` with the best fixed one, by trial.

    python benchmarks/checkpoint_interval.py [--saves 12] [--runs 20] [--faults 200] [--kills 0]

Trains a small model on this machine and measures every save: the seconds for which it blocks the
steps, those by which it slows the steps beside its write, and the write itself. Then draws runs
with these saves and with faults from a seeded Poisson process. A fault takes the work since the
last committed save. For several mean times between faults, all intervals meet the same faults. The
automatic one learns the cost and the rate from the run alone, by the code that a real run uses.

Prints the time lost and spent on saves, as a share of the work, for the best of the fixed
intervals, for half and twice that one, for the default of 10 minutes and for `auto`. Exits with 1
when `auto` takes more than 1.05 times the least. With `--kills N`, one real run follows whose
trainer is killed N times (SIGKILL, Poisson). Prints what each attempt knew, and the goodput.
"""

import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_interval_draws import Auto, Drawn, Policy, Save, fault_times, slow_down_s
from benchmarks.faults import workplace
from launcher.core.events import parse_event
from launcher.runs.goodput import goodput
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch
from tests.support.processes import wait_until
from tests.support.programs import trainer_of

NAME = "measured"
JOB = """\
name: measured
steps: {steps}
model: {{layers: 4, d_model: 256, heads: 4, kv_heads: 2, d_ff: 768}}
data: {{source: stdlib, seq_len: 128, global_batch: 8}}
eval: null
sample: null
checkpoint: {checkpoint}
retries: {{failures: 10}}
"""
STEPS_BETWEEN = 40
WARM_UP_SAVES = 1
"""The first save of a process also compiles."""
COSTS_IN_MTBF = (100, 1000, 10_000)
"""Mean times between faults, in mean costs of a save."""
RATIO, GRID = 1.1, range(-14, 15)
"""Fixed intervals: the formula's for the true cost and rate, times powers of RATIO."""
LIMIT = 1.05
DEFAULT_S = 600.0
"""The interval without any key."""
KILL_EVERY_S = 25.0


def main() -> None:
    """Measures, draws and prints; exits with 1 when a ratio is above LIMIT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=12, help="that are measured")
    parser.add_argument("--runs", type=int, default=20, help="that are drawn for each interval")
    parser.add_argument("--faults", type=int, default=200, help="mean number in each of them")
    parser.add_argument("--kills", type=int, default=0, help="of a real run")
    options = parser.parse_args()
    step_s, saves = _measure(options.saves)
    _print_saves(step_s, saves)
    ratios = [_trial(step_s, saves, costs, options) for costs in COSTS_IN_MTBF]
    if options.kills:
        _kill(options.kills)
    if max(ratios) > LIMIT:
        sys.exit(f"auto takes more than {LIMIT} times the least")


def _measure(count: int) -> tuple[float, list[Save]]:
    """Returns the mean seconds of a step beside which nothing is written, and the saves."""
    steps = STEPS_BETWEEN * (count + WARM_UP_SAVES) + STEPS_BETWEEN // 2
    with workplace() as (folder, traces):
        run = _launch(folder, traces, steps, f"{{every_steps: {STEPS_BETWEEN}, keep: 1}}")
        assert run.process.wait(1800) == 0, run.output
        times = {line["step"]: line["step_time_s"] for line in _lines(run.run_dir, "metrics.jsonl")}
        events = _lines(run.run_dir, "events.jsonl")
    saved = [event for event in events if event["event"] == "checkpoint_saved"]
    beside = {event["step"]: _beside(event, times) for event in saved}
    written = {step for steps_beside in beside.values() for step in steps_beside}
    plain_s = statistics.fmean(s for step, s in times.items() if step > 2 and step not in written)
    measured = [
        Save(
            event["blocked_s"],
            sum(times[step] - plain_s for step in beside[event["step"]]),
            event["seconds"],
        )
        for event in saved
        if event["step"] < steps
    ]
    return plain_s, measured[WARM_UP_SAVES:]


def _launch(folder: Path, traces: Traces, steps: int, checkpoint: str) -> Launch:
    (folder / "job.yaml").write_text(JOB.format(steps=steps, checkpoint=checkpoint))
    return Launch(folder, traces, NAME, ["--cluster", "local", "job.yaml"])


def _beside(event: dict[str, Any], times: dict[int, float]) -> list[int]:
    """Returns the steps that ran while a save was written."""
    steps, left_s, step = list[int](), event["seconds"] - event["blocked_s"], event["step"] + 1
    while left_s > 0 and step in times:
        steps.append(step)
        left_s -= times[step]
        step += 1
    return steps


def _lines(run_dir: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def _trial(
    step_s: float, saves: Sequence[Save], costs: int, options: argparse.Namespace
) -> float:  # fmt: skip
    """Draws all policies with faults every `costs` costs of a save; returns auto's ratio."""
    cost_s = statistics.fmean(save.blocked_s for save in saves) + slow_down_s(saves)
    mean_s = costs * cost_s
    work_s = options.faults * mean_s

    def share(make: Callable[[], Policy]) -> float:
        """Returns the mean time lost and spent on saves, as a share of the work."""
        return statistics.fmean(
            Drawn(make(), step_s, saves, random.Random(seed)).overhead_s(
                work_s, fault_times(mean_s, seed)
            )
            / work_s
            for seed in range(options.runs)
        )

    first_s = math.sqrt(2 * cost_s * mean_s)
    fixed = {first_s * RATIO**power: 0.0 for power in GRID}
    fixed = {seconds: share(lambda s=seconds: Policy(s)) for seconds in fixed}
    best_s = min(fixed, key=lambda seconds: fixed[seconds])
    auto = share(lambda: Auto(step_s))
    print(f"a fault every {mean_s:,.0f} s, {options.runs} runs of {work_s / 3600:,.1f} h")
    rows = {
        f"best fixed interval, {best_s:.3g} s": fixed[best_s],
        f"half of it, {best_s / 2:.3g} s": share(lambda: Policy(best_s / 2)),
        f"twice, {2 * best_s:.3g} s": share(lambda: Policy(2 * best_s)),
        "auto": auto,
    }
    if mean_s > DEFAULT_S:  # else the run never ends
        rows["10 minutes"] = share(lambda: Policy(DEFAULT_S))
    for name, value in rows.items():
        print(f"  {name:34} {100 * value:8.2f} %  {value / fixed[best_s]:6.3f} x best", flush=True)
    return auto / fixed[best_s]


def _print_saves(step_s: float, saves: Sequence[Save]) -> None:
    print(f"{len(saves)} saves, beside steps of {1000 * step_s:.0f} ms, in seconds")
    for name in ("blocked_s", "slowed_s", "write_s"):
        values = [getattr(save, name) for save in saves]
        print(
            f"  {name:10} mean {statistics.fmean(values):7.3f}  least {min(values):7.3f}  "
            f"most {max(values):7.3f}",
            flush=True,
        )


def _kill(kills: int) -> None:
    """Kills the trainer of a real run again and again, and prints what each attempt chose."""
    gaps = random.Random(0)
    with workplace() as (folder, traces):
        run = _launch(folder, traces, 10**6, "{every_minutes: auto}")
        for number in range(1, kills + 1):
            run.wait_for_event("step", attempt=number)
            pause_s = gaps.expovariate(1 / KILL_EVERY_S)
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: run.process.poll() is not None, pause_s)
            os.kill(trainer_of(traces, 0), signal.SIGKILL)
        run.wait_for_event("step", attempt=kills + 1)
        time.sleep(KILL_EVERY_S)
        run.process.send_signal(signal.SIGTERM)
        run.wait()
        _print_attempts(run.events())


def _print_attempts(events: Sequence[dict[str, Any]]) -> None:
    print("a real run, killed by SIGKILL")
    for event in events:
        if event["event"] == "checkpoint_interval":
            how = "measured" if event["saves"] else "assumed"
            print(
                f"  attempt {event['attempt']}: every {event['seconds']:.1f} s, a save costs "
                f"{event['cost_s']:.2f} s ({how}), {event['faults']} faults, allows for one in "
                f"{event['mtbf_s']:,.0f} s"
            )
        elif event["event"] == "restored":
            print(f"  attempt {event['attempt']}: continues after step {event['step']}")
    print(f"  {goodput([e for e in map(parse_event, map(json.dumps, events)) if e])}")


if __name__ == "__main__":
    main()
