"""Compares the goodput of real runs with faults with that of their rehearsals.

    python benchmarks/rehearsal.py [--runs NAME ...] [--faults 4] [--seed 0] [--seconds 60]

Runs a small job on two simulated hosts of this machine, once for each kind of faults, with steps of
at least 0.1 s: crashes (SIGKILL of a trainer), hangs (a data loader that sleeps) with crashes, and
losses of a host (SIGKILL of its Ray node) with crashes. Each fault comes a random number of steps
after the recovery from the one before. Then rehearses the run with the same faults at the same
times, and with the mean times of steps, saves, starts and restores of that run, as `launch rehearse
--like` does. Prints both goodputs, their difference in points, and the parts of the time of both.
Exits with 1 when a difference exceeds two points. `--seconds` is the time of all steps of a run.
Run it on an idle machine: what slows down a part of a run is in its mean.
"""

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.faults import Fire, Story, faults, sleeps_at, workplace
from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.core.events import AttemptStartedEvent, parse_event
from launcher.planning.planner import TrainingLaunch, make_launch
from launcher.rehearsal.faults import Fault, FaultKind
from launcher.rehearsal.measured import timings_of
from launcher.rehearsal.play import Outcome, Scenario, rehearse
from launcher.rehearsal.timings import default_timings
from launcher.runs.goodput import Goodput, goodput
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.launches import Launcher
from trainer.contract.config.command import load_job
from trainer.contract.protocol.events import Event

STEP_S, EVERY_STEPS, STANDBY_AFTER_S = 0.1, 40, 3.0
MOST_POINTS = 2.0
HOSTS, VICTIM = 2, 1
DAY_S = 86400.0
JOB = f"""\
name: rehearsed
steps: {{steps}}
model: {{{{layers: 2, d_model: 64, heads: 2, d_ff: 128}}}}
data: {{{{source: text, path: "corpus/*.txt", seq_len: 32, global_batch: 4}}}}
mesh: {{{{data: -1, fsdp: 1}}}}
eval: null
sample: null
checkpoint: {{{{every_steps: {EVERY_STEPS}}}}}
retries: {{{{failures: 10, standby_after_s: {STANDBY_AFTER_S}}}}}
"""
CRASH, HANG, LOSS = "SIGKILL of a trainer", "sleep in a data loader", "SIGKILL of a node"
KINDS = {CRASH: FaultKind.PROCESS, HANG: FaultKind.HANG, LOSS: FaultKind.HOST}
RUNS = {"crashes": [CRASH], "hangs": [HANG, CRASH], "losses": [LOSS, CRASH]}


@dataclass(frozen=True)
class Played:
    """A real run with its faults."""

    launch: TrainingLaunch
    events: list[Event]
    faults: list[Fault]


def main() -> None:
    """Runs and rehearses, run by run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", nargs="*", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--faults", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(f"{'run':10} {'faults':>6} {'real':>8} {'rehearsed':>10} {'points':>7}", flush=True)
    differences = [_compare(name, options) for name in options.runs]
    sys.exit(1 if max(differences) > MOST_POINTS else 0)


def _compare(name: str, options: argparse.Namespace) -> float:
    """Prints the comparison of one run; returns the difference in points."""
    rng = random.Random(f"{options.seed} {name}")
    with workplace() as (folder, traces):
        played = _play(folder, traces, name, rng, options)
    real, rehearsed = goodput(played.events), _rehearse(played)
    assert real.share is not None
    points = 100 * abs(real.share - rehearsed.goodput)
    shares = f"{100 * real.share:7.2f}% {100 * rehearsed.goodput:9.2f}% {points:7.2f}"
    print(f"{name:10} {len(played.faults):>6} {shares}", flush=True)
    print(f"           {_real_parts(real)}\n           {_parts(rehearsed)}", flush=True)
    return points


def _play(
    folder: Path, traces: Traces, name: str, rng: random.Random, options: argparse.Namespace
) -> Played:
    """Runs the job and injects its faults. Raises NotRecoveredError."""
    launcher, flag = Launcher(folder, traces), folder / "sleep"
    steps = round(options.seconds / STEP_S)
    (folder / "job.yaml").write_text(JOB.format(steps=steps))
    code = f"time.sleep({STEP_S}); {sleeps_at(flag)}"
    cluster = launcher.cluster_file("rehearsed-cluster", sabotage(folder, code))
    run = launcher.on(cluster, "rehearsed")
    fires, story = faults(flag), Story(run)
    story.wait_for_steps(1)
    fired = [
        _fire(story, fires, traces, rng.choice(RUNS[name]), _pause_steps(rng, steps, options))
        for _ in range(options.faults)
    ]
    code_of_run = run.wait(3600.0)
    assert code_of_run == 0, run.output
    lines = (run.run_dir / "events.jsonl").read_bytes().splitlines()
    events = [event for line in lines if (event := parse_event(line)) is not None]
    began_s = next(e.time for e in events if isinstance(e, AttemptStartedEvent)) or 0.0
    victim = (VICTIM + 0.5) / HOSTS
    hits = [Fault(time_s - began_s, KINDS[fault], victim) for fault, time_s in fired]
    spec = make_launch(
        load_job(folder / "job.yaml"),
        find_cluster(str(cluster)),
        folder / "runs",
        ClusterRef(name=str(cluster)),
    )
    assert isinstance(spec, TrainingLaunch)
    return Played(spec, events, hits)


def _pause_steps(rng: random.Random, steps: int, options: argparse.Namespace) -> int:
    """Returns a number of new steps before a fault, such that all faults fit into the run."""
    most = steps // (options.faults + 1)
    return rng.randint(most // 2, most)


def _fire(
    story: Story, fires: dict[str, Fire], traces: Traces, fault: str, steps: int
) -> tuple[str, float]:
    """Injects a fault after new steps, and awaits the recovery; returns it with its time."""
    story.catch_up()
    story.wait_for_steps(steps)
    time_s = fires[fault](traces, VICTIM)
    story.recovery(time_s)
    return fault, time_s


def _rehearse(played: Played) -> Outcome:
    launch = played.launch
    timings = timings_of(played.events, default_timings(launch, STEP_S), STANDBY_AFTER_S)
    assert timings is not None
    print(json.dumps({name: round(s, 2) for name, s in asdict(timings).items() if s}), flush=True)
    return rehearse(Scenario.of(launch, timings, DAY_S), played.faults)


def _real_parts(real: Goodput) -> str:
    return "real:      " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds, _ in real.rows())


def _parts(rehearsed: Outcome) -> str:
    parts = asdict(rehearsed.parts).items()
    return "rehearsed: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts)


if __name__ == "__main__":
    main()
