"""Injects many faults into one run, which must end as if none had happened.

    python benchmarks/soak.py [--faults 50] [--seed 0] [--hosts 2] [--netns] [--in-memory null]

Runs a small job on simulated hosts. It runs first without faults, then, with `--netns` on hosts in
networks of their own, in the foreground of a terminal with that many random faults. Each comes at a
random moment after the recovery from the last one: SIGKILL of a trainer in a random phase, of an
agent, of a Ray node; SIGTERM of a trainer, of a node; SIGSTOP of a trainer; a data loader that
sleeps; a trainer that the kernel kills for lack of memory; checkpoints that cannot be read for some
seconds after a kill (ESTALE); checkpoints that are slow to write; a terminal that closes, after
which the run is resumed in another one.

With `--in-memory`, the state is also kept in the memory of the hosts, every so many steps; a lost
host loses its memory. Prints a line for each fault, and how often each source was restored. Checks
at the end that every step is in the curve once, with the examples and the losses of the run without
faults; that there were not many more attempts than faults; that the parts of the goodput add up to
the wall time; and that no process and no file is left. Exits with 1 when one of these does not
hold. Fifty faults take about 20 minutes. Memory kills need root and a memory cgroup; without them
they are skipped, and a line says so.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import (
    Fire,
    NotRecoveredError,
    Recovery,
    Story,
    faults,
    sleeps_at,
    workplace,
)
from benchmarks.soak_faults import NoMemoryCgroupError, memory_kills, slow_storage, storage_errors
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.faulty_storage import FaultyStorage
from tests.support.launches import Launcher
from tests.support.processes import wait_until
from tests.support.terminal import Terminal
from trainer.contract.records.metrics_file import curve

NAME = "soak"
JOB = """\
name: soak
steps: {steps}
model: {{layers: 1, d_model: 16, heads: 2, d_ff: 32}}
data: {{source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 12}}
mesh: {{data: 1, fsdp: -1}}
eval: {{every_steps: 15, batches: 1}}
sample: null
checkpoint: {{every_steps: 10, keep: 3, in_memory_every_steps: {in_memory}}}
retries: {{failures: 10}}
"""
STEPS_PER_FAULT = 30
"""More steps than between two faults, so that the run does not end before the last one."""
STEP_S = 0.05
UNDISTURBED_TIMEOUT_S = 3600.0
LONGEST_PAUSE_S = 1.0
IN_LOOP, IN_START = ("train", "save", "evaluate"), ("start", "restore", "compile")
BY_PHASE, MEMORY_KILL = "SIGKILL of a trainer", "memory kill of a trainer"
STORAGE_ERRORS, SLOW_STORAGE = "storage errors", "slow storage"
HANGUP, HANGUP_TIMEOUT_S = "closed terminal", 120.0
INTERRUPTED = 130
ATTEMPTS_PER_FAULT = 2
"""Maximum on average: a fault that hits while a program starts can cost one more attempt."""
LOSS_TOLERANCE = 1e-4
"""Share of the value; the same mesh gives the same bits."""
WALL_TOLERANCE, COMMAND_S = 0.01, 2.0
"""Share of the wall time, and seconds of each command before and after it drives the run."""


@dataclass(frozen=True)
class Shot:
    """One planned fault."""

    fault: str
    process: int
    phase: str
    """The phase of host 0 that the fault hits. In a start it follows a fault of the same kind."""
    steps: int
    """New steps to wait for since the last recovery."""
    pause_s: float
    """Pause after these steps."""

    def __str__(self) -> str:
        return f"{self.fault} ({self.phase}, host {self.process})"


class Session:
    """The run in a terminal; when that closes, the run is resumed in a new one."""

    def __init__(self, launcher: Launcher, cluster: Path) -> None:
        self.run_dir = launcher.folder / "runs" / NAME
        self.commands = 1
        """Number of commands that have started or resumed the run."""
        self._launcher, self._earlier = launcher, ""
        self._terminal = self._open("--cluster", str(cluster), "job.yaml")

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        return self._terminal.process

    @property
    def output(self) -> str:
        return self._earlier + self._terminal.output

    def hang_up(self) -> float:
        """Closes the terminal and resumes the run; returns the time of the close.

        Raises NotRecoveredError when the command does not end as an interrupted one.
        """
        fired = time.time()
        self._terminal.close()
        try:
            code = self.process.wait(HANGUP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise NotRecoveredError("the command outlives its terminal") from None
        state = json.loads((self.run_dir / "state.json").read_text())["state"]
        if (code, state) != (INTERRUPTED, "interrupted"):
            raise NotRecoveredError(f"exit code {code}, state {state}\n{self.output}")
        self._earlier += self._terminal.output
        self.commands += 1
        self._terminal = self._open("resume", NAME)
        return fired

    def _open(self, *arguments: str) -> Terminal:
        command = [sys.executable, "-m", "launcher", *arguments]
        return Terminal(command, self._launcher.folder, self._launcher.traces.environment)


class Soak:
    """Chooses and injects the faults."""

    def __init__(
        self, session: Session, launcher: Launcher, rng: random.Random, hosts: int
    ) -> None:
        self.attempts = 1
        """Number of attempts of the run so far."""
        self._hosts = hosts
        self._session, self._launcher, self._rng = session, launcher, rng
        self._story = Story(session)
        self._fires: dict[str, Fire] = faults(launcher.folder / "sleep")
        self._fires[HANGUP] = lambda traces, process: session.hang_up()

    def add(self, name: str, fire: Fire) -> None:
        self._fires[name] = fire

    def recoveries(self, count: int) -> Iterator[tuple[Shot, Recovery]]:
        """Injects one fault after the other, and prints how long the run took to recover."""
        began = time.time()
        self._story.wait_for_steps(1)
        for number in range(1, count + 1):
            shot = self._draw()
            fired = self._fire(shot)
            print(f"{number:3}  {fired - began:6.1f} s  {shot!s:50}", end="  ", flush=True)
            recovery = self._recover(shot, fired)
            print(f"{recovery.kind:10}  new step after {recovery.new_s:5.1f} s", flush=True)
            self.attempts = self._story.attempt
            yield shot, recovery

    def _draw(self) -> Shot:
        rng = self._rng
        fault = rng.choice(list(self._fires))
        phase = rng.choice(IN_LOOP + IN_START) if fault == BY_PHASE else "train"
        pause_s = LONGEST_PAUSE_S * rng.random()
        return Shot(fault, rng.randrange(self._hosts), phase, rng.randint(1, 10), pause_s)

    def _fire(self, shot: Shot) -> float:
        """Injects a fault; returns its time."""
        fire, story, traces = self._fires[shot.fault], self._story, self._launcher.traces
        story.wait_for_steps(shot.steps)
        time.sleep(shot.pause_s)
        story.catch_up()
        if shot.phase in IN_START:
            fire(traces, shot.process)
        if shot.phase != "train":
            story.wait_for_phase(shot.phase)
        return fire(traces, shot.process)

    def _recover(self, shot: Shot, fired: float) -> Recovery:
        """Slow storage must end no attempt: a save completes, and steps continue after it."""
        if shot.fault != SLOW_STORAGE:
            return self._story.recovery(fired)
        self._story.wait_for(lambda event: event["event"] == "checkpoint_saved")
        saved_s = time.time() - fired
        self._story.wait_for_steps(1)
        return Recovery("slow", saved_s, time.time() - fired)


def main() -> None:
    """Runs both runs, and checks them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--netns", action="store_true")
    parser.add_argument("--in-memory", default="null")
    options = parser.parse_args()
    with workplace() as (folder, traces), ExitStack() as stack:
        os.environ.update(XDG_STATE_HOME=f"{folder}/state", XDG_CACHE_HOME=f"{folder}/cache")
        launcher = Launcher(folder, traces)
        steps = STEPS_PER_FAULT * (1 + options.faults)
        job = JOB.format(steps=steps, in_memory=options.in_memory)
        (launcher.folder / "job.yaml").write_text(job)
        same_hosts = launcher.cluster_file("same-hosts", hosts=options.hosts)
        undisturbed = launcher.on(same_hosts, "undisturbed", ["checkpoint=null"])
        undisturbed.wait(UNDISTURBED_TIMEOUT_S)
        rng = random.Random(options.seed)
        storage = FaultyStorage(folder, f"/runs/{NAME}/checkpoints/")
        os.environ.update(storage.environment)
        began = time.monotonic()
        slow = f"time.sleep({STEP_S}); {sleeps_at(launcher.folder / 'sleep')}"
        networks = ", netns: true" if options.netns else ""
        provider = sabotage(launcher.folder, slow) + networks
        cluster = launcher.cluster_file("soak-cluster", provider, hosts=options.hosts)
        session = Session(launcher, cluster)
        soak = Soak(session, launcher, rng, options.hosts)
        soak.add(STORAGE_ERRORS, storage_errors(storage, rng))
        soak.add(SLOW_STORAGE, slow_storage(storage))
        try:
            soak.add(MEMORY_KILL, stack.enter_context(memory_kills()))
        except NoMemoryCgroupError as error:
            print(f"left out: {error}")
        try:
            recoveries = list(soak.recoveries(options.faults))
            code = session.process.wait(3600)
        except (AssertionError, NotRecoveredError) as error:
            sys.exit(f"not recovered: {error}")
        wall_s = time.monotonic() - began
        _print_recoveries(recoveries)
        _print_sources(session.run_dir)
        checks = [
            (code == 0, f"the run ended with {code}"),
            _check_examples(session.run_dir, undisturbed.run_dir),
            _check_losses(session.run_dir, undisturbed.run_dir),
            _check_attempts(soak.attempts, options.faults),
            _check_goodput(launcher, wall_s, session.commands),
            _check_leftovers(traces),
        ]
    for holds, text in checks:
        print("ok  " if holds else "FAIL", text)
    sys.exit(0 if all(holds for holds, _ in checks) else 1)


def _print_recoveries(recoveries: list[tuple[Shot, Recovery]]) -> None:
    """Prints the longest recovery of each kind of fault."""
    for fault in sorted({shot.fault for shot, _ in recoveries}):
        took_s = [recovery.new_s for shot, recovery in recoveries if shot.fault == fault]
        print(f"{fault:24} {len(took_s):3} times, to a new step {max(took_s):5.1f} s at most")


def _print_sources(run_dir: Path) -> None:
    """Prints how many attempts were restored from memory, from neighbors, and from storage."""
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    sources = Counter(
        event["source"] for event in map(json.loads, lines) if event["event"] == "restored"
    )
    print("restored from", ", ".join(f"{name} {n} times" for name, n in sources.most_common()))


def _check_examples(run_dir: Path, undisturbed: Path) -> tuple[bool, str]:
    found, wanted = _column(run_dir, "examples"), _column(undisturbed, "examples")
    steps = [step for step, _ in found]
    once = steps == list(range(1, len(wanted) + 1))
    lines = (run_dir / "metrics.jsonl").read_text().count('"loss"')
    text = f"every step once ({lines - len(steps)} were done again), with the same examples"
    return once and found == wanted, f"{len(found)} steps: {text}"


def _check_losses(run_dir: Path, undisturbed: Path) -> tuple[bool, str]:
    found, wanted = _column(run_dir, "loss"), _column(undisturbed, "loss")
    both = zip(found, wanted, strict=False)
    worst = max((abs(one - other) / other for (_, one), (_, other) in both), default=math.inf)
    return worst <= LOSS_TOLERANCE, f"losses differ by at most {worst:.1e} of their value"


def _column(run_dir: Path, name: str) -> list[tuple[int, Any]]:
    """Returns each step of the curve with its value of that name."""
    lines = curve((run_dir / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line[name]) for line in lines if "loss" in line]


def _check_attempts(attempts: int, count: int) -> tuple[bool, str]:
    most = 1 + ATTEMPTS_PER_FAULT * count
    return attempts <= most, f"{attempts} attempts for {count} faults (at most {most})"


def _check_goodput(launcher: Launcher, wall_s: float, commands: int) -> tuple[bool, str]:
    """Compares the goodput of `launch status` with the clock of this program."""
    status = subprocess.run(
        [sys.executable, "-m", "launcher", "status", "soak", "-o", "json"],
        cwd=launcher.folder,
        env=launcher.traces.environment,
        check=True,
        capture_output=True,
    )
    report = json.loads(status.stdout)["goodput"]
    whole_s = sum(report["parts_s"].values())
    parts = ", ".join(f"{name} {s:.0f}" for name, s in report["parts_s"].items() if s >= 0.5)
    text = f"goodput {100 * report['goodput']:.1f} %: {whole_s:.1f} s of {wall_s:.1f} s ({parts})"
    return abs(whole_s - wall_s) <= COMMAND_S * commands + WALL_TOLERANCE * wall_s, text


def _check_leftovers(traces: Traces) -> tuple[bool, str]:
    try:
        wait_until(lambda: not traces.processes() and not traces.folders(), timeout_s=5.0)
    except TimeoutError:
        return False, f"left: {traces.processes()} {traces.folders()}"
    return True, "no process and no file is left"


if __name__ == "__main__":
    main()
