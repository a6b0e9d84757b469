"""Measures the time from a fault to the next new step: `launch` and Ray Train's JaxTrainer.

    python benchmarks/recovery.py [--faults NAME ...] [--hosts 2] [--rounds 3] [--spares 0]
        [--in-memory null] [--after-steps 2] [--model small] [--limit-s 180] [--accelerator cpu]

Runs on simulated hosts of this machine, with a warm compile cache, and with standby processes that
are ready. Each fault is injected `--after-steps` steps after a checkpoint was reported. A step
takes 0.1 s, so repeated steps cost little. Prints the seconds from the fault to the first step of
the next attempt and to the first new step, beside Slipway's target: medians over the rounds, with
the lowest and the highest. Prints the most repeated steps, the medians of the parts of the first
time, and the most traces and compilations of a process before its first step. With `--spares`,
there are hosts to take the place of a lost one, and each round is a new run. With `--in-memory`,
states are also kept in the memory of the hosts, every so many steps or `auto`. `--model large` has
1 GiB of state, and longer steps. `--hosts 1 --accelerator h200-1` runs on the GPU of this machine.

With two hosts and the small model, JaxTrainer runs too if `ray.train` can be imported:

    uv run --with "ray[train]==2.60.*" python benchmarks/recovery.py

Its program is a plain data-parallel loop (recovery_jax_trainer.py) of the same pace, with as many
steps between checkpoints; it has no agents. A recovery that exceeds the limit is printed as such
and ends its rounds.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.faults import (
    PARTS,
    Fire,
    NotRecoveredError,
    Recovery,
    Story,
    faults,
    sleeps_at,
    workplace,
)
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.launches import Launcher
from tests.support.processes import wait_until
from tests.support.programs import standbys

WORKER = Path(__file__).with_name("recovery_jax_trainer.py")
NEEDS = ("pyarrow", "fsspec", "pandas")
"""Packages that `ray.train` imports, which Slipway's environment lacks."""
EVERY_STEPS, STEP_S = 20, 0.1
JOB = """\
name: recovery
steps: 1000000
model: {model}
data: {{source: text, path: "corpus/*.txt", seq_len: {seq_len}, global_batch: 4}}
mesh: {mesh}
eval: null
sample: null
checkpoint: {{every_steps: {every_steps}, in_memory_every_steps: {in_memory}}}
retries: {{standby_after_s: 0}}
"""
CLUSTER = """\
accelerator: {accelerator}
hosts: {hosts}
devices_per_host: 1
spares: {spares}
provider: {{kind: local{sabotage}}}
"""
MODELS = {
    "small": (
        "{layers: 4, d_model: 128, heads: 4, kv_heads: 2, d_ff: 384}",
        "{data: -1, fsdp: 1}",
        32,
    ),
    "large": (
        "{layers: 7, d_model: 1024, heads: 8, d_ff: 2816}",
        "{data: 1, fsdp: 1, tensor: -1}",
        8,
    ),
}
"""Model, mesh and length of a sequence. The large one is sharded: no host has what another one has,
and steps exchange activations only. It has few tokens, because two cores would take seconds for the
products of more."""


@dataclass(frozen=True)
class Case:
    """A fault, the host that it hits, and Slipway's target in seconds."""

    fault: str
    process: int
    aim_s: float

    def among(self, hosts: int) -> "Case":
        """Returns the case for that many hosts: the last one is hit if there are too few."""
        return replace(self, process=min(self.process, hosts - 1))


CASES = {
    "trainer": Case("SIGKILL of a trainer", 1, 3),
    "coordinator": Case("SIGKILL of a trainer", 0, 3),
    "agent": Case("SIGKILL of an agent", 1, 5),
    "node": Case("SIGKILL of a node", 1, 5),
    "stopped": Case("SIGSTOP of a trainer", 1, 8),
    "sleeping": Case("sleep in a data loader", 1, 8),
}


@dataclass
class JaxTrainer:
    """A run under Ray Train, in a separate process."""

    run_dir: Path
    process: subprocess.Popen[bytes]

    @property
    def output(self) -> str:
        return (self.run_dir / "output").read_text()


def main() -> None:
    """Measures fault by fault, each launcher in its own cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--in-memory", default="null")
    parser.add_argument("--after-steps", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--limit-s", type=float, default=180.0)
    parser.add_argument("--accelerator", default="cpu")
    options = parser.parse_args()
    ways = {"launch": _launch}
    can_compare = options.hosts == 2 and options.model == "small"
    if can_compare and all(map(importlib.util.find_spec, NEEDS)):
        ways["JaxTrainer"] = _jax_trainer
    titles = f"{'first step':>20} {'new step':>20} {'repeated':>9}"
    print(f"{'fault':12} {'aim':>6}  {'way':10} {titles}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(XDG_STATE_HOME=f"{folder}/state", XDG_CACHE_HOME=f"{folder}/cache")
        for name in options.faults:
            for way, measure in ways.items():
                case = CASES[name].among(options.hosts)
                if way == "JaxTrainer" and name == "agent":
                    continue
                runs = options.rounds if options.spares else 1
                found = []
                for _ in range(runs):
                    with workplace() as (own, traces):
                        found += measure(case, own, traces, options.rounds // runs, options)
                _print(name, case, way, found, options)


def _print(
    name: str, case: Case, way: str, found: list[Recovery], options: argparse.Namespace
) -> None:
    first = new = f"> {options.limit_s:.0f} s"
    if len(found) == options.rounds:
        first = _spread([recovery.first_s for recovery in found])
        new = _spread([recovery.new_s for recovery in found])
    aim = f"{case.aim_s:.0f} s" if way == "launch" else ""
    repeated = max((recovery.repeated for recovery in found), default="")
    print(f"{name:12} {aim:>6}  {way:10} {first:>20} {new:>20} {repeated:>9}", flush=True)
    if way == "launch" and found:
        parts = {
            part: statistics.median(recovery.parts_s[part] for recovery in found) for part in PARTS
        }
        traces = max(recovery.traces for recovery in found)
        print(" " * 12 + ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items()))
        print(" " * 12 + f"traces and compilations: {traces}")


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


def _launch(
    case: Case, folder: Path, traces: Traces, rounds: int, options: argparse.Namespace
) -> Iterator[Recovery]:
    launcher, flag = Launcher(folder, traces), folder / "sleep"
    model, mesh, seq_len = MODELS[options.model]
    job = JOB.format(
        model=model,
        mesh=mesh,
        seq_len=seq_len,
        every_steps=EVERY_STEPS,
        in_memory=options.in_memory,
    )
    (folder / "job.yaml").write_text(job)
    code = f"time.sleep({STEP_S}); {sleeps_at(flag)}"
    cluster = folder / "recovery-cluster.yaml"
    cluster.write_text(
        CLUSTER.format(
            accelerator=options.accelerator,
            hosts=options.hosts,
            spares=options.spares,
            sabotage=sabotage(folder, code, case.process),
        )
    )
    run = launcher.on(cluster, "recovery")

    def until_ready() -> None:
        wait_until(lambda: len(standbys(traces)) == options.hosts + options.spares)

    fire = faults(flag)[case.fault]
    yield from _rounds(case, fire, Story(run), traces, rounds, options, until_ready)


def _jax_trainer(
    case: Case, folder: Path, traces: Traces, rounds: int, options: argparse.Namespace
) -> Iterator[Recovery]:
    flag = folder / "sleep"
    with (folder / "output").open("wb") as output:
        command = [sys.executable, str(WORKER), str(folder), str(EVERY_STEPS), str(STEP_S)]
        process = subprocess.Popen(
            command, env=traces.environment, stdout=output, stderr=subprocess.STDOUT
        )

    def worker_of(_: Traces, process: int) -> int:
        return int((folder / f"rank-{process}").read_text())

    fire = faults(flag, worker_of)[case.fault]
    yield from _rounds(case, fire, Story(JaxTrainer(folder, process)), traces, rounds, options)


def _rounds(
    case: Case,
    fire: Fire,
    story: Story,
    traces: Traces,
    rounds: int,
    options: argparse.Namespace,
    until_ready: Callable[[], None] = lambda: None,
) -> Iterator[Recovery]:
    """Yields the recovery from one fault after the other, until one fails."""
    story.wait_for_steps(1)
    for _ in range(rounds):
        until_ready()
        story.catch_up()
        story.wait_for(lambda event: event["event"] == "checkpoint_saved")
        story.wait_for_steps(options.after_steps)
        fired = fire(traces, case.process)
        try:
            yield story.recovery(fired, options.limit_s)
        except NotRecoveredError as error:
            print(error, file=sys.stderr)
            return


if __name__ == "__main__":
    main()
