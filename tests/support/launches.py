"""A launch as a process of its own, in a folder of its own."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import LAUNCH_TIMEOUT_S, wait_until

JOB = """\
name: small
steps: 100000
log_every: 1
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 4}
mesh: {data: -1, fsdp: 1}
eval: null
sample: null
retries: {failures: 0, preemptions: 0}
"""
SAME = ("step", "loss", "examples", "learning_rate", "tokens")
"""Keys of a step's metrics that do not depend on the speed of the machine."""
CLUSTER = """\
accelerator: cpu
hosts: %s
devices_per_host: 1
provider: {kind: local%s}
%s
"""


class Launch:
    """`launch` in a folder of its own, with a small job that would run for hours."""

    def __init__(self, folder: Path, traces: Traces, name: str, words: Sequence[str]) -> None:
        self.run_dir = folder / "runs" / name
        self._output_path = folder / f"{name}.out"
        with self._output_path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launcher", *words],
                cwd=folder,
                env=traces.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        traces.started.append(self.process)

    @property
    def output(self) -> str:
        return self._output_path.read_text()

    @property
    def reason(self) -> str:
        """The last lines of the output: the error, its help and the next command."""
        return "\n".join(self.output.strip().splitlines()[-4:])

    def wait(self, timeout_s: float = LAUNCH_TIMEOUT_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until a condition holds while the launch lives; its output is the error otherwise."""
        try:
            wait_until(lambda: condition() or self.process.poll() is not None, LAUNCH_TIMEOUT_S)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.output}") from None
        assert self.process.poll() is None, self.output

    def events(self) -> list[dict[str, Any]]:
        """Whole lines of events.jsonl so far."""
        path = self.run_dir / "events.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for_event(self, event: str, **fields: object) -> dict[str, Any]:
        """The first event of that kind with these fields, as soon as it is there."""

        def found() -> list[dict[str, Any]]:
            wanted = {"event": event, **fields}.items()
            return [e for e in self.events() if wanted <= e.items()]

        self.wait_for(found)
        return found()[0]

    def wait_for_step(self) -> None:
        metrics = self.run_dir / "metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2)

    def log(self, process: int) -> str:
        return (self.run_dir / "logs" / f"host-{process:04d}.log").read_text()


class Launcher:
    """Starts launches in one folder, and ends what a failed test left."""

    def __init__(self, folder: Path, traces: Traces) -> None:
        self.folder, self.traces = folder, traces
        (folder / "job.yaml").write_text(JOB)
        (folder / "corpus").mkdir()
        for name in "abcdef":
            (folder / "corpus" / f"{name}.txt").write_text(f"text of {name} " * 100)

    def __call__(self, name: str = "small", provider: str = "", more: str = "") -> Launch:
        return self.on(self.cluster_file(f"{name}-cluster", provider, more), name)

    def on(self, cluster: Path | str, name: str, words: Sequence[str] = ()) -> Launch:
        own = ["--cluster", str(cluster), "job.yaml", f"name={name}", *words]
        return Launch(self.folder, self.traces, name, own)

    def resume(self, name: str, *words: str) -> Launch:
        return Launch(self.folder, self.traces, name, ["resume", name, *words])

    def cluster_file(
        self, name: str, provider: str = "", more: str = "", hosts: int | str = 2
    ) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(CLUSTER % (hosts, provider, more))
        return path


def start(project: Path, cluster: Path, traces: Traces, name: str, *words: str) -> Launch:
    """Starts a launch in a project; it saves no checkpoints unless `words` say otherwise."""
    own = ["-c", str(cluster), "job.yaml", f"name={name}", *(words or ["checkpoint=null"])]
    return Launch(project, traces, name, own)


def curve(folder: Path) -> list[list[Any]]:
    """Returns the values of `SAME` for every step of a run."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [[line[key] for key in SAME] for line in lines if "loss" in line]
