"""Traces of some steps on some processes."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.gang import run
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.planning.planner import resolve

SHORT = {"seq_len": 8, "global_batch": 2}


@pytest.mark.slow
def test_the_named_steps_are_traced_on_the_named_processes_alone(tmp_path: Path) -> None:
    """As TensorBoard and XProf read it, and as Perfetto does; the losses stay what they are."""
    plain, traced = tmp_path / "plain", tmp_path / "traced"
    untraced = run(job_of(steps=5, data=SHORT), world_of(2), plain)
    profile = {"steps": [2, 3], "processes": [1]}
    ended = run(job_of(steps=5, data=SHORT, profile=profile), world_of(2), traced)
    assert ended.codes == [0, 0], ended.outputs
    assert f"profile written to {traced}/profile/host-0001" in ended.outputs[1]
    assert [path.name for path in (traced / "profile").iterdir()] == ["host-0001"]
    (trace,) = traced.rglob("perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert [path for path in traced.rglob("*.xplane.pb") if path.stat().st_size]
    losses = [[line["loss"] for line in one.lines()] for one in (untraced, ended)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"steps": [2, 4]}, "profile.steps: the last step is 4, but the run has 3"),
        (
            {"steps": [1, 1], "processes": [0, 2]},
            "profile.processes: found 2, but the processes of 2 hosts are 0 to 1",
        ),
    ],
)
def test_what_there_is_not_cannot_be_traced(profile: dict, said: str) -> None:
    job = job_of(profile=profile)
    with pytest.raises(ValueError, match=said):
        resolve(job, world_of(2), corpus_of(job))


def test_the_first_step_is_not_after_the_last() -> None:
    with pytest.raises(ValueError, match="the first step, 3, is after the last, 2"):
        job_of(profile={"steps": [3, 2]})
