"""Measures what webhooks that hang cost a training step, within one run.

    python benchmarks/notify_overhead.py [--rounds 20] [--seconds 5] [--targets 8]

Runs a small training job on two simulated hosts. In half of the rounds, the process that drives the
run also has a notifier whose targets do not answer. Prints the median step time with and without
them, and the median and the quartiles of the ratios of neighbouring rounds. The same ratios of two
rounds without targets say how much of it is noise.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLUSTER = "{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {kind: local}}"
OVERRIDES = [
    "name=overhead", "steps=1000000", "eval=null", "sample=null", "checkpoint=null",
    "data.seq_len=64", "model.layers=2",
]  # fmt: skip
WARM_UP_STEPS = 20


@dataclass
class Rounds:
    """The rounds of a run: each with and without targets that hang."""

    options: argparse.Namespace
    folder: Path
    spans: list[tuple[bool, float, float]] = field(default_factory=list)
    """Whether the targets hung, the begin and the end, in seconds since the epoch."""

    def run(self) -> None:
        """Waits for the first steps, makes the rounds, and stops the run."""
        from launcher import find_run

        events = self.folder / "runs" / "overhead" / "events.jsonl"
        while len(step_times(events)) < WARM_UP_STEPS:
            time.sleep(0.5)
        for number in range(2 * self.options.rounds):
            self._round(hangs=number % 4 in (1, 2))
        find_run("overhead", self.folder / "runs").stop()

    def _round(self, *, hangs: bool) -> None:
        began = time.time()
        if hangs:
            self._hang()
        else:
            time.sleep(self.options.seconds)
        self.spans.append((hangs, began, time.time()))

    def _hang(self) -> None:
        """Sends an event to all targets, which answer only at the end of the round."""
        from launcher.notify.notifier import Notifier
        from tests.support.notices import notice_of
        from tests.support.webhooks import webhook_server
        from trainer.contract.config.notify import UrlTarget

        with webhook_server() as hooks, tempfile.TemporaryDirectory() as folder:
            hooks.hangs = True
            targets = [UrlTarget(url=f"{hooks.url}/{n}") for n in range(self.options.targets)]
            notifier = Notifier(Path(folder), targets)
            notifier.send(notice_of("straggler"))
            time.sleep(self.options.seconds)
            assert len(hooks.received) >= self.options.targets, "the targets were not reached"
            hooks.ended.set()
            notifier.close(timeout_s=0.0)


def step_times(events: Path) -> list[tuple[float, float]]:
    """Returns the time and the duration of each step of process 0, in seconds."""
    if not events.exists():
        return []
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [(one["received"], one["step_time_s"]) for one in lines if one["event"] == "step"]


def print_ratios(rounds: Rounds, steps: Sequence[tuple[float, float]]) -> None:
    """Prints the step times of both kinds of rounds, and their ratios."""
    medians: dict[bool, list[float]] = {False: [], True: []}
    for hangs, began, ended in rounds.spans:
        medians[hangs].append(statistics.median(s for at, s in steps if began < at < ended))
    without, with_hang = (1000 * statistics.median(medians[kind]) for kind in (False, True))
    print(f"{len(steps)} steps; without targets {without:.2f} ms, hanging {with_hang:.2f} ms")
    print(f"hanging against without: {_ratios(medians[True], medians[False])}")
    print(f"without against without: {_ratios(medians[False][1:], medians[False][:-1])}")


def _ratios(some: Sequence[float], others: Sequence[float]) -> str:
    ratios = [one / other for one, other in zip(some, others, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} (quartiles {low:.3f} to {high:.3f})"


def main() -> None:
    """Runs the job in this process, with the rounds in a thread."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 20), ("targets", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    from launcher import plan, run
    from launcher.core.errors import InterruptError

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cluster.yaml").write_text(CLUSTER)
        spec = plan(
            ROOT / "jobs" / "quickstart.yaml", cluster=str(folder / "cluster.yaml"),
            overrides=OVERRIDES, runs=folder / "runs",
        )  # fmt: skip
        rounds = Rounds(options, folder)
        thread = threading.Thread(target=rounds.run)
        thread.start()
        try:
            run(spec, progress=False)
        except InterruptError:  # the rounds have stopped it
            thread.join()
        print_ratios(rounds, step_times(folder / "runs" / "overhead" / "events.jsonl"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
