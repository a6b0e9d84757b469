"""A host that computes a gradient wrong: named before the update, and the curve stays clean."""

from pathlib import Path

import pytest

from tests.support import gang
from tests.support.fault_injection import flip_checked_gradient
from tests.support.jobs import job_of, world_of
from trainer.contract.config.job import Job
from trainer.contract.protocol.events import REWOUND, WRONG_HOST
from trainer.contract.protocol.exit_codes import ProgramExit
from trainer.contract.records import checkpoint_metadata

STEPS, EVERY, WRONG = 8, 3, 1
FLIP_STEP = 2 * EVERY
"""The check at this step finds the host. The check before it found nothing."""
GRADIENT = "layers.attention.query.kernel"


def _job(folder: Path) -> Job:
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"{number} is the square of {number**2}. " for number in range(999)))
    return job_of(
        steps=STEPS,
        data={"source": "text", "path": str(corpus), "global_batch": 6},
        model={"layers": 1},
        checkpoint={"every_steps": 2, "keep": 1},
        integrity={"replay_every": EVERY},
    )


def _run(folder: Path, hosts: int, wrong: int | None, attempt: int = 1) -> gang.Ended:
    env: dict[int, dict[str, str]] = {}
    if wrong is not None:
        path, own = flip_checked_gradient(folder.parent, FLIP_STEP, GRADIENT)
        env = {n: {"PYTHONPATH": str(path), **(own if n == wrong else {})} for n in range(hosts)}
    started = gang.start(_job(folder.parent), world_of(hosts, 1), folder, attempt, host_env=env)
    return gang.wait(folder, started)


def _reports(ended: gang.Ended) -> dict[int, str]:
    return {event["process"]: event["category"] for event in ended.events if "category" in event}


@pytest.mark.slow
def test_wrong_host_is_named_before_the_update_and_the_curve_is_clean(tmp_path) -> None:
    folder = tmp_path / "run"
    ended = _run(folder, 3, WRONG)
    assert ended.codes == [ProgramExit.STOPPED] * 3, "\n".join(ended.outputs)
    (found,) = [event for event in ended.events if event["event"] == "wrong_host"]
    assert (found["step"], found["hosts"]) == (FLIP_STEP, [WRONG])
    assert f"(gradient of {GRADIENT}). host {WRONG} computed wrong" in found["message"]
    assert _reports(ended) == {0: REWOUND, 1: WRONG_HOST, 2: REWOUND}
    # Step 4 was saved after the last check that all hosts passed, and step 2 before it.
    assert max(line["step"] for line in ended.steps()) == FLIP_STEP - 1
    assert checkpoint_metadata.steps(folder / "checkpoints") == [2]
    assert (folder / "checkpoints" / "4.unchecked" / "about.json").exists()
    again = _run(folder, 3, None, attempt=2)
    assert again.codes == [0] * 3, "\n".join(again.outputs)
    clean = _run(tmp_path / "clean", 3, None)
    numbers = {
        name: {line["step"]: (line["loss"], line["grad_norm"]) for line in one.steps()}
        for name, one in (("again", again), ("clean", clean))
    }
    assert numbers["again"] == numbers["clean"] and len(numbers["clean"]) == STEPS


@pytest.mark.slow
def test_two_hosts_that_differ_end_the_run_without_a_name(tmp_path) -> None:
    ended = _run(tmp_path / "run", 2, WRONG)
    assert ended.codes == [ProgramExit.BAD_DATA] * 2, "\n".join(ended.outputs)
    (found,) = [event for event in ended.events if event["event"] == "wrong_host"]
    assert (found["hosts"], found["suspects"]) == ([], [0, 1])
    assert "no majority" in found["message"]
    assert checkpoint_metadata.steps(tmp_path / "run" / "checkpoints") == [2]
