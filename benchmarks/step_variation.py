"""Measures what standby processes, in-memory checkpoints and collections do to the step time.

    python benchmarks/step_variation.py [--hosts 2] [--ways again standby memory collection]
        [--rounds 120] [--seconds 2]

Runs the same job on simulated hosts of this machine in several ways: "plain" with none of the
three, "again" as well, which shows how much two launches of one kind differ, "standby" with a
standby process on each host, "memory" with in-memory checkpoints at the interval that `auto`
chooses, "collection" with Python's garbage collected at the same steps on all hosts. All of them
live at the same time, and take turns: see alternation.py. The state has 32 MB; each host has a part
of it, and a copy of a neighbor's part.

A step's time is the time since the end of the step before, so saves count. Prints the mean and the
99th percentile of each way, and three ratios to "plain", with bootstrap intervals of 95 % over the
rounds: the median over the rounds of the ratio of their means; the ratio of the means of all steps,
which includes what only some rounds contain, such as a save; and that of the 99th percentiles. For
"standby", prints the processor time that standby processes have taken in all rounds.
"""

import argparse
import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.alternation import (
    Pair,
    alternate,
    mean_ratio,
    running,
    step_times,
    stopped,
    with_interval,
)
from benchmarks.faults import workplace
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import hook
from tests.support.launches import Launch, Launcher
from tests.support.programs import standbys

WARM_UP_STEPS = 20
JOB = """\
name: {name}
steps: 1000000
model: {{layers: 3, d_model: 256, heads: 4, d_ff: 768}}
data: {{source: text, path: "corpus/*.txt", seq_len: 64, global_batch: 8}}
mesh: {{data: 1, fsdp: -1}}
eval: null
sample: null
checkpoint: {{every_steps: 1000000, in_memory_every_steps: {in_memory}}}
retries: {{standby_after_s: {standby_after_s}}}
"""
NO_COLLECTION = """\
def change(module):
    module.CollectionCallback.__enter__ = lambda self: self
    module.CollectionCallback.__exit__ = lambda self, *_: None
    module.CollectionCallback.before_step = lambda self, step: None
"""
NO_CHANGE = """\
def change(module):
    pass
"""
ALARMS = ("hang", "suspended", "attempt_ended")
"""Events that a pause must not cause."""


@dataclass(frozen=True)
class Way:
    """The values of two keys of the job, and whether hosts collect garbage at the same steps."""

    standby_after_s: str = "null"
    in_memory: str = "null"
    is_coordinated: bool = False


WAYS = {
    "plain": Way(),
    "again": Way(),
    "standby": Way(standby_after_s="0"),
    "memory": Way(in_memory="auto"),
    "collection": Way(is_coordinated=True),
}


def main() -> None:
    """Starts all ways, lets them take turns, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    others = [way for way in WAYS if way != "plain"]
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=others, default=others)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # nothing may stay stopped
    launches: dict[str, Launch] = {}
    trees: dict[str, Traces] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ.update(XDG_STATE_HOME=f"{folder}/state", XDG_CACHE_HOME=f"{folder}/cache")
        # The memory's interval follows from its first saves: few other launches run then.
        for way in sorted(["plain", *options.ways], key=lambda way: way != "memory"):
            own, trees[way] = stack.enter_context(workplace())
            launches[way] = _started(way, own, trees[way], options.hosts)
        before = {way: _standby_cpu_s(traces) for way, traces in trees.items()}
        with stopped(trees.values()):
            turns = alternate(
                {way: partial(running, traces) for way, traces in trees.items()},
                options.rounds,
                options.seconds,
            )
        times = {
            way: step_times(_events(launch), [turn[way] for turn in turns])
            for way, launch in launches.items()
        }
        print(f"{options.hosts} hosts, turns of {options.seconds:g} s")
        if "memory" in launches:
            print(f"memory: {_saves(launches['memory'])}")
        if "standby" in launches:
            taken = _standby_cpu_s(trees["standby"]) - before["standby"]
            print(f"standby: {taken:.2f} s of processor time")
    _print({way: times[way] for way in WAYS if way in times})


def _started(way: str, folder: Path, traces: Traces, hosts: int) -> Launch:
    """Returns a launch that is past its first steps, with its standby processes."""
    launcher, values = Launcher(folder, traces), WAYS[way]
    job = JOB.format(name=way, in_memory=values.in_memory, standby_after_s=values.standby_after_s)
    (folder / "job.yaml").write_text(job)
    change = NO_CHANGE if values.is_coordinated else NO_COLLECTION
    path = hook(folder, "trainer.callbacks", change, "")
    of_hosts = ", ".join(f"{host}: {{PYTHONPATH: {path}}}" for host in range(hosts))
    cluster = launcher.cluster_file("variation", f", host_env: {{{of_hosts}}}", hosts=hosts)
    launch = launcher.on(cluster, way)
    launch.wait_for_event("step", step=WARM_UP_STEPS)
    if values.standby_after_s != "null":
        launch.wait_for(lambda: len(standbys(traces)) == hosts)
    return launch


def _events(launch: Launch) -> list[dict[str, object]]:
    """Returns the events of a launch. Raises AssertionError when its attempt was disturbed."""
    events = launch.events()
    alarms = [event for event in events if event["event"] in ALARMS]
    assert launch.process.poll() is None and not alarms, f"{alarms}\n{launch.output}"
    return events


def _saves(launch: Launch) -> str:
    """Returns how many saves a launch has made in how many steps, from its start on."""
    save = {"event": "phase", "name": "save", "edge": "begin", "process": 0}.items()
    events = launch.events()
    steps = sum(event["event"] == "step" for event in events)
    return f"{sum(save <= event.items() for event in events)} saves in {steps} steps"


def _standby_cpu_s(traces: Traces) -> float:
    """Returns the seconds of processor time that standby processes have taken, see proc(5)."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2] for one in standbys(traces)]
    ticks = sum(int(tick) for one in fields for tick in one.split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _ratio_of(statistic: Callable[[list[float]], float]) -> Callable[[Sequence[Pair]], float]:
    """Returns a function for the ratio of a statistic over the steps of all rounds."""

    def ratio(rounds: Sequence[Pair]) -> float:
        own, of = ([step for one in side for step in one] for side in zip(*rounds, strict=True))
        return statistic(own) / statistic(of)

    return ratio


def _quantile_99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _print(times: dict[str, list[list[float]]]) -> None:
    """Prints a line for each way. Rounds in which one of them made no whole step are left out."""
    rounds = list(zip(*times.values(), strict=True))
    whole = [number for number, one in enumerate(rounds) if all(one)]
    assert whole, "no round has a step of each launch: raise --seconds"
    print(f"{len(whole)} of {len(rounds)} rounds")
    ratios = (mean_ratio, _ratio_of(statistics.fmean), _ratio_of(_quantile_99))
    titles = "".join(f"{title:>24}" for title in ("rounds", "all steps", "99 %"))
    print(f"{'':12}{'steps':>7}{'mean':>11}{'99 %':>11}{titles}")
    for way, of_rounds in times.items():
        steps = [step for number in whole for step in of_rounds[number]]
        mean, high = 1000 * statistics.fmean(steps), 1000 * _quantile_99(steps)
        pairs = [(of_rounds[number], times["plain"][number]) for number in whole]
        compared = ratios if way != "plain" else ()
        found = "".join(f"{with_interval(pairs, ratio):>24}" for ratio in compared)
        print(f"{way:12}{len(steps):7}{mean:8.1f} ms{high:8.1f} ms{found}")


if __name__ == "__main__":
    main()
