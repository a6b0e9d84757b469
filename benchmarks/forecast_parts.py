"""Compiles six presets for six absent clusters, and shows the parts of their forecasts.

    uv run --extra tpu python benchmarks/forecast_parts.py [NAME ...]

Prints a table, a row as soon as its step is compiled, which takes one to five minutes on two
cores. All jobs recompute whole layers. The parts are added up as they are in the columns, and
compared with the time at which the schedule of the devices ends, to which the host adds what it
does beyond. Exits with 1 when the two differ by more than ROUNDING, or a step is not compiled.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.published_table import PARTS, part_cell
from trainer.contract.estimates.forecast import HOST
from trainer.contract.planning import accelerators

ROUNDING = 0.001
"""Largest difference between the parts and the step, as a share of the step."""
JOB = """\
name: parts
steps: 1000
model: {{preset: {preset}, remat: full}}
data: {{source: text, path: "corpus/*", seq_len: {seq_len}, global_batch: {rows}}}
eval: null
sample: null
checkpoint: null
"""


@dataclass(frozen=True)
class Case:
    """A preset on a cluster, with a batch."""

    preset: str
    accelerator: str
    rows_per_device: int
    seq_len: int
    slices: int = 1
    overrides: tuple[str, ...] = ()
    """What is set in the job, as on a command line."""

    @property
    def cluster(self) -> str:
        """The text of the cluster file."""
        slices = f"slices: {self.slices}, provider: {{kind: gcp}}"
        return f"{{accelerator: {self.accelerator}, {slices}}}\n"

    @property
    def cluster_name(self) -> str:
        """The accelerator, and the number of slices if there are several."""
        return f"{self.slices} x {self.accelerator}" if self.slices > 1 else self.accelerator

    @property
    def job(self) -> str:
        """The text of the job file."""
        devices = self.slices * accelerators.parse(self.accelerator).devices
        rows = devices * self.rows_per_device
        return JOB.format(preset=self.preset, seq_len=self.seq_len, rows=rows)


CASES = {
    "llama3-8b-v4-32": Case("llama3-8b", "v4-32", 1, 4096),
    "olmo2-7b-2x-v5e-16": Case("olmo2-7b", "v5e-16", 1, 2048, slices=2),
    "qwen3-8b-v5p-64": Case("qwen3-8b", "v5p-64", 2, 4096),
    "mistral-7b-v6e-16": Case("mistral-7b", "v6e-16", 1, 8192),
    "mixtral-8x7b-v6e-64": Case("mixtral-8x7b", "v6e-64", 1, 4096),
    "llama3-70b-v7x-128": Case("llama3-70b", "v7x-128", 1, 4096),
}
HEAD = [
    "preset", "cluster", "rows x positions per device", "step", *PARTS, "difference",
    "tokens/s per device", "MFU",
]  # fmt: skip


def main() -> int:
    """Compiles the cases one after the other, and prints a row for each."""
    names = sys.argv[1:] or [*CASES]
    if unknown := [name for name in names if name not in CASES]:
        sys.exit(f"no case is named {', '.join(unknown)}. There are: {', '.join(CASES)}")
    print(line(HEAD), line(["---"] * len(HEAD)), sep="\n", flush=True)
    failed = 0
    for name in names:
        found = compiled(CASES[name])
        if found is None:
            print(f"{name}: not compiled", file=sys.stderr)
            failed += 1
            continue
        print(line(cells(CASES[name], found)), flush=True)
        failed += abs(difference(found)) > ROUNDING
    return 1 if failed else 0


def compiled(case: Case) -> dict[str, Any] | None:
    """Returns what `launch plan --compile` prints as JSON.

    Returns None when there is no forecast; the command has then printed the reason.
    """
    command = [sys.executable, "-m", "launcher", "plan", "job.yaml", "-c", "./cluster.yaml"]
    root = str(Path(__file__).parents[1])
    with TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(case.job)
        (Path(folder) / "cluster.yaml").write_text(case.cluster)
        child = subprocess.run(
            [*command, *case.overrides, "--compile", "-o", "json"],
            cwd=folder, env={**os.environ, "PYTHONPATH": root}, stdout=subprocess.PIPE, check=False,
        )  # fmt: skip
    found = json.loads(child.stdout) if child.returncode == 0 else {}
    return found if found.get("schedule") else None


def difference(found: Mapping[str, Any]) -> float:
    """Returns the parts in the columns, less the time of a step, as a share of the step."""
    parts = found["forecast"]["parts"]
    step_s = found["schedule"]["device_s"] + parts[HOST]
    shown = [seconds for name, seconds in parts.items() if name.startswith(tuple(PARTS.values()))]
    return sum(shown) / step_s - 1


def cells(case: Case, found: Mapping[str, Any]) -> list[str]:
    """Returns the cells of a row."""
    forecast = found["forecast"]
    return [
        case.preset,
        case.cluster_name,
        f"{case.rows_per_device} x {case.seq_len:,}",
        f"{forecast['step_time_s']:.3f}",
        *(part_cell(start, forecast["parts"]) for start in PARTS.values()),
        f"{100 * abs(difference(found)):.3f} %",
        f"{forecast['tokens_per_s_per_device']:,.0f}",
        f"{100 * forecast['mfu']:.1f} %",
    ]


def line(row: list[str]) -> str:
    """Returns a row of a table in Markdown."""
    return f"| {' | '.join(row)} |"


if __name__ == "__main__":
    sys.exit(main())
