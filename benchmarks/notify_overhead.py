"""Measures what webhooks that hang cost a training step, within one run.

    python benchmarks/notify_overhead.py [--rounds 40] [--seconds 3] [--targets 8]

Runs a small training job on two simulated hosts. In one of the two turns of each round, the process
that drives the run also has a notifier whose targets do not answer: see alternation.py. Prints the
median step time with and without them, and the median over the rounds of the ratio of their mean
steps, with its bootstrap interval of 95 %.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alternation import Turn, alternate, mean_ratio, step_times, with_interval
from launcher import find_run, plan, run
from launcher.core.errors import InterruptError
from launcher.notify.notifier import Notifier
from tests.support.notices import notice_of
from tests.support.processes import wait_until
from tests.support.webhooks import webhook_server
from trainer.contract.config.notify import UrlTarget

JOB = Path(__file__).parents[1] / "jobs" / "quickstart.yaml"
CLUSTER = "{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {kind: local}}"
OVERRIDES = [
    "name=overhead", "steps=1000000", "eval=null", "sample=null", "checkpoint=null",
    "data.seq_len=64", "model.layers=2",
]  # fmt: skip
WARM_UP_STEPS = 20


@contextmanager
def hanging(targets: int) -> Iterator[None]:
    """Sends an event to targets, which answer only at the end."""
    with webhook_server() as hooks, tempfile.TemporaryDirectory() as folder:
        hooks.hangs = True
        urls = [UrlTarget(url=f"{hooks.url}/{number}") for number in range(targets)]
        notifier = Notifier(Path(folder), urls)
        notifier.send(notice_of("straggler"))
        yield
        assert len(hooks.received) >= targets, "the targets were not reached"
        hooks.ended.set()
        notifier.close(timeout_s=0.0)


def take_turns(runs: Path, options: argparse.Namespace) -> list[dict[str, Turn]]:
    """Waits for the first steps of the run, lets both ways take turns, and stops the run."""
    wait_until(lambda: len(events_of(runs, "step")) >= WARM_UP_STEPS)
    ways = {"without": nullcontext, "hanging": partial(hanging, options.targets)}
    try:
        return alternate(ways, options.rounds, options.seconds)
    finally:
        find_run("overhead", runs).stop()


def events_of(runs: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the events of a kind that the run has written so far."""
    path = runs / "overhead" / "events.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def print_ratio(events: list[dict[str, Any]], turns: list[dict[str, Turn]]) -> None:
    """Prints the step times of both ways, and their ratio."""
    without, hang = (
        step_times(events, [turn[way] for turn in turns]) for way in ("without", "hanging")
    )
    for name, rounds in (("without targets", without), ("hanging", hang)):
        steps = [step for one in rounds for step in one]
        print(f"{name}: {len(steps)} steps of {1000 * statistics.median(steps):.2f} ms")
    pairs = list(zip(hang, without, strict=True))
    print(f"hanging against without: {with_interval(pairs, mean_ratio)}")


def main() -> None:
    """Runs the job in this process, with the turns in a thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 40), ("targets", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        cluster, runs = Path(name) / "cluster.yaml", Path(name) / "runs"
        cluster.write_text(CLUSTER)
        spec = plan(JOB, cluster=str(cluster), overrides=OVERRIDES, runs=runs)
        turns = pool.submit(take_turns, runs, options)
        try:
            run(spec, progress=False)
        except InterruptError:  # the turns have stopped it
            print_ratio(events_of(runs, "step"), turns.result())


if __name__ == "__main__":
    main()
