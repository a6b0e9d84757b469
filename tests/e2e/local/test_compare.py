"""`launch compare` on pairs of real runs: what differs is known, and the verdict must say it."""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import run_launcher
from tests.support.sampling import IS_FULL

pytestmark = pytest.mark.slow
JOB = """\
name: base
steps: 40
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 4}
optimizer: {schedule: constant, learning_rate: 1e-2}
eval: null
sample: null
checkpoint: {every_steps: 6}
retries: {failures: 0, preemptions: 0, standby_after_s: null}
"""
ONE = """\
accelerator: cpu
hosts: 1
devices_per_host: 2
provider: {kind: local}
"""
TWO = ONE.replace("hosts: 1", "hosts: 2").replace("devices_per_host: 2", "devices_per_host: 1")
PROGRAM = """\
import json, os
with open(int(os.environ["SLIPWAY_EVENTS_FD"]), "w") as events:
    for step in range(1, 41):
        events.write(json.dumps({"event": "step", "step": step, "loss": 1 / step}) + "\\n")
"""
RUNS = {
    "base": [],
    "again": [],
    "logs": ["log_every=7"],
    "rate": ["optimizer.learning_rate=1e-5"],
    "few": ["optimizer.learning_rate=1e-5", "steps=10"],
    "seed": ["seed=1"],
    "tensor": ["mesh.tensor=2"],
    "accum": ["data.grad_accum_steps=2"],
    "bfloat16": ["model.compute_dtype=bfloat16"],
    "batch": ["data.global_batch=8", "steps=20"],
    "length": ["data.seq_len=8"],
    "corpus": ["data.path=other/*.txt"],
    "moved": ["data.path=moved/*.txt"],
    "longer": ["steps=60"],
    "hosts": ["--cluster", "two.yaml"],
}
"""Name of each run -> how its command differs from that of `base`."""
RESUMED = {
    "resumed": [],
    "repeated": [],
    "turned": ["optimizer.learning_rate=1e-5"],
    "resized": ["--cluster", "two.yaml"],
}
"""Name of each run that stops after step 20 -> how the command that continues it differs."""
FULL = {
    "again", "logs", "few", "accum", "bfloat16", "length", "moved", "longer", "resized", "corpus",
    "resumed", "repeated", "tensor", "turned", "hosts", "batch",
}  # fmt: skip
"""Runs that only CI_FULL makes; their pairs are marked `full`."""
SAME_KINDS = "equal_losses|equal_up_to_rounding"
"""Kinds of pairs that differ in the order of sums, which may happen to be bitwise equal."""
ANY_LOSS = "lower_loss|higher_loss|no_clear_difference"
PAIRS = {
    ("base", "again"): ("same_run", "same run: same job, code, libraries, cluster and plan"),
    ("base", "resumed"): ("same_run", "all 40 common losses equal bit for bit"),
    ("base", "repeated"): (
        "same_run",
        "same run: same job, code, libraries, cluster and plan; "
        "all 40 common losses equal bit for bit",
    ),
    ("resumed", "repeated"): ("same_run", "all 40 common losses equal bit for bit"),
    ("base", "logs"): ("equal_losses", "one key differs: log_every; same examples; all 40"),
    ("logs", "rate"): ("higher_loss", "2 keys differ: log_every, optimizer.learning_rate; same"),
    ("base", "longer"): ("equal_losses", "one key differs: steps; same examples; all 40 common"),
    ("base", "moved"): ("equal_losses", "one key differs: data.path; same examples; all 40"),
    ("base", "rate"): ("higher_loss", "one key differs: optimizer.learning_rate; same examples"),
    ("rate", "base"): ("lower_loss", "one key differs: optimizer.learning_rate; same examples"),
    ("base", "turned"): (ANY_LOSS, "one key differs: optimizer.learning_rate; same examples"),
    ("rate", "turned"): ("lower_loss", "same job, code, libraries, cluster and plan; same"),
    ("base", "few"): ("no_clear_difference", "too few for a confidence interval"),
    ("base", "seed"): ("different_examples", "one key differs: seed; different examples"),
    ("rate", "seed"): ("different_examples", "2 keys differ: seed, optimizer.learning_rate"),
    ("base", "corpus"): ("different_examples", "one key differs: data.path; different examples"),
    ("base", "length"): ("different_examples", "one key differs: data.seq_len; different"),
    ("base", "batch"): ("other_batches", "2 keys differ: steps, data.global_batch; same examples"),
    ("seed", "batch"): ("different_examples", "3 keys differ"),
    ("base", "tensor"): (SAME_KINDS, "one key differs: mesh.tensor; same examples"),
    ("base", "accum"): (SAME_KINDS, "one key differs: data.grad_accum_steps; same examples"),
    ("base", "hosts"): (SAME_KINDS, "other cluster (name, hosts); same examples"),
    ("base", "resized"): (SAME_KINDS, "other cluster (name, hosts); same examples"),
    ("tensor", "hosts"): (SAME_KINDS, "one key differs: mesh.tensor; other cluster (name, hosts)"),
    ("base", "bfloat16"): (ANY_LOSS, "one key differs: model.compute_dtype; same examples"),
    ("base", "libraries"): ("equal_losses", "other libraries (jax); same examples; all 40"),
    ("base", "code"): ("equal_losses", "other code; same examples; all 40 common losses"),
    ("program", "program-again"): ("unknown_examples", "no digests are recorded"),
    ("base", "crashed"): ("no_common_step", "no common step yet"),
}
"""Pair -> kind of its verdict, and a part of the verdict's text."""
COMPARED = [pair for pair in PAIRS if IS_FULL or not FULL & {*pair}]


class Project:
    """A folder with the runs, on a cluster that stays."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        files = {"job.yaml": JOB, "one.yaml": ONE, "two.yaml": TWO, "program.py": PROGRAM}
        for name, text in files.items():
            (folder / name).write_text(text)
        for name, word in (("corpus", "text"), ("moved", "text"), ("other", "words")):
            (folder / name).mkdir()
            for part in "abcdef":
                (folder / name / f"{part}.txt").write_text(f"{word} of {part}, " * 100)

    def launch(self, *words: str, code: int = 0) -> str:
        done = run_launcher(self.folder, self._environment, *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def run(self, name: str) -> None:
        words = RUNS.get(name, ["stop_after_step=20"])
        self.launch("-c", "one.yaml", "job.yaml", f"name={name}", *words)

    def resume(self, name: str) -> None:
        self.launch("resume", name, "stop_after_step=null", *RESUMED[name])

    def run_program(self, name: str, program: str, code: int = 0) -> None:
        job = self.folder / f"{name}.yaml"
        job.write_text(f"name: {name}\ncommand: [python, {program}]\nretries: {{failures: 0}}\n")
        self.launch("-c", "one.yaml", str(job), code=code)

    def copy(self, name: str, before: str, after: str) -> None:
        """Copies `base` with another text in its events."""
        copied = shutil.copytree(self.folder / "runs" / "base", self.folder / "runs" / name)
        events = copied / "events.jsonl"
        text = events.read_text()
        assert before in text
        events.write_text(text.replace(before, after))

    def compare(self, *names: str) -> dict[str, Any]:
        return json.loads(self.launch("compare", *names, "-o", "json"))


def _made(names: Iterable[str]) -> list[str]:
    return [name for name in names if IS_FULL or name not in FULL]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with Traces() as traces:
        project = Project(tmp_path_factory.mktemp("compare"), traces.environment)
        project.launch("up", "one.yaml")
        _run_all(project)
        yield project
        project.launch("down", "one.yaml", "--yes")


def _run_all(project: Project) -> None:
    # A run waits for 20 s for a host that another one uses: one that compiles has it to itself.
    first, *others = _made([*RUNS, *RESUMED])
    project.run(first)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(project.run, others))
        if IS_FULL:
            shutil.rmtree(project.folder / "runs" / "repeated" / "checkpoints" / "20")
        list(pool.map(project.resume, _made(RESUMED)))
    for name in ("program", "program-again"):
        project.run_program(name, "program.py")
    project.run_program("crashed", "absent.py", code=1)
    started = next(
        event
        for line in (project.folder / "runs" / "base" / "events.jsonl").read_text().splitlines()
        if (event := json.loads(line))["event"] == "started"
    )
    project.copy("libraries", f'"jax": "{started["versions"]["jax"]}"', '"jax": "0.0.1"')
    project.copy("code", started["code"], "0" * 64)


@pytest.fixture(scope="module")
def found(project: Project) -> dict[tuple[str, str], dict[str, Any]]:
    """The comparison of each pair, from one command for all pairs with the same first run."""
    others: dict[str, list[str]] = {}
    for first, second in COMPARED:
        others.setdefault(first, []).append(second)
    return {
        (first, pair["name"]): pair
        for first, seconds in others.items()
        for pair in project.compare(first, *seconds)["pairs"]
    }


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id="-".join(pair), marks=pytest.mark.full if FULL & {*pair} else ())
        for pair in PAIRS
    ],
)
def test_verdict_on_a_pair_is_correct(
    found: dict[tuple[str, str], dict[str, Any]], pair: tuple[str, str]
) -> None:
    kinds, text = PAIRS[pair]
    verdict = found[pair]["verdict"]
    assert verdict["kind"] in kinds.split("|") and text in verdict["text"], verdict


def test_first_different_step_is_the_one_after_the_change(
    found: dict[tuple[str, str], dict[str, Any]],
) -> None:
    assert found["base", "rate"]["losses"]["first_different_step"] == 2


@pytest.mark.full
def test_a_run_that_turned_differs_from_the_step_after_its_turn(
    found: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """A rate that differs from step 21 on changes the weights of step 22."""
    assert found["base", "turned"]["losses"]["first_different_step"] == 22


@pytest.mark.full
def test_repeated_steps_count_once(project: Project) -> None:
    base, repeated = project.compare("base", "repeated")["runs"]
    lines = (project.folder / "runs" / "repeated" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) > 40 and repeated["attempts"] == 2
    assert repeated["tokens"] == base["tokens"] == 40 * 4 * 16
