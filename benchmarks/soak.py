"""One run that is hit again and again: it must end as if nothing had been.

    python benchmarks/soak.py [--faults 50] [--seed 0]

Runs a small job on two simulated hosts, first undisturbed, then with so many random faults, each a
random moment after the run got over the last one: SIGKILL of a trainer in a random phase, of an
agent, of a Ray node; SIGTERM of a trainer, of a node; SIGSTOP of a trainer; a data loader that
sleeps. Prints a line for each, and what holds at the end: every step is in the curve once, with the
examples of the undisturbed run; the parts of the goodput add up to the wall time; no process and no
file is left. The exit code is 1 where one of it does not hold. Fifty faults take some 15 minutes.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import NotRecoveredError, Recovery, Story, faults, sleeps_at, workplace
from tests.faults.launches import Launch, Launcher
from tests.faults.sabotage import sabotage
from tests.leftovers import Traces, wait_until
from trainer.spec.curve import curve

JOB = """\
name: soak
steps: {steps}
model: {{layers: 1, d_model: 16, heads: 2, d_ff: 32}}
data: {{source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 12}}
mesh: {{data: -1, fsdp: 1}}
evaluate: {{every_steps: 15, batches: 1}}
sample: null
checkpoint: {{every_steps: 10, keep: 3}}
retries: {{failures: 10}}
"""
STEPS_PER_FAULT = 30
"""More than there are between two of them, so that the run does not end before the last one."""
STEP_S = 0.05
LONGEST_PAUSE_S = 1.0
IN_LOOP, IN_START = ("train", "save", "evaluate"), ("start", "restore", "compile")
BY_PHASE = "SIGKILL of a trainer"
WALL_TOLERANCE, COMMAND_S = 0.01, 2.0
"""Of the wall time; what the command takes before there is a run and after it."""


@dataclass(frozen=True)
class Shot:
    """One fault, before it is fired."""

    fault: str
    process: int
    phase: str
    """In which it hits; those of a start follow on a fault of the same kind."""
    steps: int
    """New ones since the last recovery."""
    pause_s: float
    """After these."""

    def __str__(self) -> str:
        return f"{self.fault} ({self.phase}, host {self.process})"


def main() -> None:
    """Both runs, and what holds of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with workplace() as (folder, traces):
        os.environ.update(XDG_STATE_HOME=f"{folder}/state", XDG_CACHE_HOME=f"{folder}/cache")
        launcher = Launcher(folder, traces)
        job = JOB.format(steps=STEPS_PER_FAULT * (1 + options.faults))
        (launcher.folder / "job.yaml").write_text(job)
        undisturbed = launcher.on(_one_host(launcher), "undisturbed")
        undisturbed.wait()
        dice = random.Random(options.seed)
        began = time.monotonic()
        flag = launcher.folder / "sleep"
        slow = f"time.sleep({STEP_S}); {sleeps_at(flag)}"
        run = launcher("soak", sabotage(launcher.folder, slow))
        try:
            recoveries = list(_recoveries(run, launcher, dice, options.faults))
            code = run.wait(timeout_s=3600)
        except (AssertionError, NotRecoveredError) as error:
            sys.exit(f"not recovered: {error}")
        wall_s = time.monotonic() - began
        _print_recoveries(recoveries)
        checks = [
            (code == 0, f"the run ended with {code}"),
            _check_examples(run, undisturbed),
            _check_goodput(launcher, wall_s),
            _check_leftovers(traces),
        ]
    for holds, text in checks:
        print("ok  " if holds else "FAIL", text)
    sys.exit(0 if all(holds for holds, _ in checks) else 1)


def _one_host(launcher: Launcher) -> Path:
    """A cluster whose runs have the same examples, and are done sooner."""
    cluster = launcher.cluster_file("one-host")
    cluster.write_text(cluster.read_text().replace("hosts: 2", "hosts: 1"))
    return cluster


def _recoveries(
    run: Launch, launcher: Launcher, dice: random.Random, count: int
) -> Iterator[tuple[Shot, Recovery]]:
    """Fires one fault after the other, and tells of each how long the run took to get over it."""
    story, began = Story(run), time.time()
    story.wait_for_steps(1)
    for number in range(1, count + 1):
        shot = _draw(dice, launcher.folder / "sleep")
        fired = _fire(shot, story, launcher)
        at_s = fired - began
        print(f"{number:3}  {at_s:6.1f} s  {shot!s:50}", end="  ", flush=True)
        recovery = story.recovery(fired)
        print(f"{recovery.kind:10}  new step after {recovery.new_s:5.1f} s", flush=True)
        yield shot, recovery


def _draw(dice: random.Random, flag: Path) -> Shot:
    fault = dice.choice(list(faults(flag)))
    phase = dice.choice(IN_LOOP + IN_START) if fault == BY_PHASE else "train"
    return Shot(
        fault, dice.randrange(2), phase, dice.randint(1, 10), LONGEST_PAUSE_S * dice.random()
    )


def _fire(shot: Shot, story: Story, launcher: Launcher) -> float:
    """When it hit."""
    fire = faults(launcher.folder / "sleep")[shot.fault]
    story.wait_for_steps(shot.steps)
    time.sleep(shot.pause_s)
    story.catch_up()
    if shot.phase in IN_START:
        fire(launcher.traces, shot.process)
    if shot.phase != "train":
        story.wait_for_phase(shot.phase, shot.process)
    return fire(launcher.traces, shot.process)


def _print_recoveries(recoveries: list[tuple[Shot, Recovery]]) -> None:
    """The longest of each kind of fault."""
    for fault in sorted({shot.fault for shot, _ in recoveries}):
        took_s = [recovery.new_s for shot, recovery in recoveries if shot.fault == fault]
        print(f"{fault:24} {len(took_s):3} times, to a new step {max(took_s):5.1f} s at most")


def _check_examples(run: Launch, undisturbed: Launch) -> tuple[bool, str]:
    found, wanted = _examples(run), _examples(undisturbed)
    steps = [step for step, _ in found]
    once = steps == list(range(1, len(wanted) + 1))
    lines = (run.run_dir / "metrics.jsonl").read_text().count('"loss"')
    text = f"every step once ({lines - len(steps)} were done again), with the same examples"
    return once and found == wanted, f"{len(found)} steps: {text}"


def _examples(run: Launch) -> list[tuple[int, str]]:
    lines = curve((run.run_dir / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["examples"]) for line in lines if "loss" in line]


def _check_goodput(launcher: Launcher, wall_s: float) -> tuple[bool, str]:
    """What `launch status` tells, beside the clock of this program."""
    status = subprocess.run(
        [sys.executable, "-m", "launcher", "status", "soak", "-o", "json"],
        cwd=launcher.folder,
        env=launcher.traces.environment,
        check=True,
        capture_output=True,
    )
    told = json.loads(status.stdout)["goodput"]
    whole_s = sum(told["parts_s"].values())
    parts = ", ".join(f"{name} {s:.0f}" for name, s in told["parts_s"].items() if s >= 0.5)
    text = f"goodput {100 * told['goodput']:.1f} %: {whole_s:.1f} s of {wall_s:.1f} s ({parts})"
    return abs(whole_s - wall_s) <= COMMAND_S + WALL_TOLERANCE * wall_s, text


def _check_leftovers(traces: Traces) -> tuple[bool, str]:
    try:
        wait_until(lambda: not traces.processes() and not traces.folders(), timeout_s=5.0)
    except TimeoutError:
        return False, f"left: {traces.processes()} {traces.folders()}"
    return True, "no process and no file is left"


if __name__ == "__main__":
    main()
