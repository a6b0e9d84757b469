"""A host that computes a gradient wrong: named before the update, and the curve stays clean."""

from pathlib import Path

import pytest

from tests.support import gang
from tests.support.fault_injection import flip_checked_gradient, flip_from_step
from tests.support.jobs import job_of, world_of
from trainer.contract.config.job import Job
from trainer.contract.protocol.events import REWOUND, WRONG_HOST
from trainer.contract.protocol.exit_codes import ProgramExit
from trainer.contract.records import checkpoint_metadata

STEPS, EVERY, WRONG = 8, 3, 1
FLIP_STEP = 2 * EVERY + 1
"""The check at this step finds the host. The check before it found nothing."""
FIRST_WRONG_STEP = EVERY + 1
"""The update of this step is the first wrong one. The check before that update found nothing."""
GRADIENT = "layers.attention.query.kernel"
Env = dict[int, dict[str, str]]


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


def _run(folder: Path, hosts: int, env: Env, attempt: int = 1) -> gang.Ended:
    started = gang.start(_job(folder.parent), world_of(hosts, 1), folder, attempt, host_env=env)
    return gang.wait(folder, started)


def _env(path: Path, hosts: int, fault: dict[str, str]) -> Env:
    """The variables of hosts of which one has a fault: all run one program, in their own cache."""
    common = {"PYTHONPATH": str(path), "XDG_CACHE_HOME": str(path / "cache")}
    return {n: {**common, **(fault if n == WRONG else {})} for n in range(hosts)}


def _numbers(ended: gang.Ended) -> dict[int, tuple[float, float]]:
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in ended.steps()}


def _reports(ended: gang.Ended) -> dict[int, str]:
    return {event["process"]: event["category"] for event in ended.events if "category" in event}


@pytest.mark.full
@pytest.mark.slow
def test_wrong_host_is_named_before_the_update_and_the_curve_is_clean(tmp_path) -> None:
    """The host is wrong from the update on that follows a check, so a state is saved meanwhile."""
    folder, (path, fault) = tmp_path / "run", flip_from_step(tmp_path, FIRST_WRONG_STEP, GRADIENT)
    ended = _run(folder, 3, _env(path, 3, fault))
    assert ended.codes == [ProgramExit.STOPPED] * 3, "\n".join(ended.outputs)
    (found,) = [event for event in ended.events if event["event"] == "wrong_host"]
    assert (found["step"], found["hosts"]) == (FLIP_STEP, [WRONG])
    # No array divides by 3 hosts: each has a copy, and that of the wrong host differs by now.
    assert f"(weights). host {WRONG} computed wrong" in found["message"]
    assert _reports(ended) == {0: REWOUND, 1: WRONG_HOST, 2: REWOUND}
    assert max(_numbers(ended)) == FLIP_STEP - 1
    # Step 6 was saved after the first wrong update, and step 2 before it.
    assert checkpoint_metadata.steps(folder / "checkpoints") == [2]
    bad = checkpoint_metadata.read_about(folder / "checkpoints" / "6.unchecked")
    (left,) = [event for event in ended.events if event["event"] == "checkpoints_discarded"]
    assert left["newest"] == 2
    again = _run(folder, 3, _env(path, 3, {}), attempt=2)
    assert again.codes == [0] * 3, "\n".join(again.outputs)
    clean = _numbers(_run(tmp_path / "clean", 3, _env(path, 3, {})))
    good = checkpoint_metadata.read_about(tmp_path / "clean" / "checkpoints" / "6")
    assert bad.arrays != good.arrays
    assert _numbers(again) == clean and len(clean) == STEPS


@pytest.mark.slow
def test_two_hosts_that_differ_end_the_run_without_a_name(tmp_path) -> None:
    path, fault = flip_checked_gradient(tmp_path, FLIP_STEP, GRADIENT)
    ended = _run(tmp_path / "run", 2, _env(path, 2, fault))
    assert ended.codes == [ProgramExit.BAD_DATA] * 2, "\n".join(ended.outputs)
    (found,) = [event for event in ended.events if event["event"] == "wrong_host"]
    assert (found["hosts"], found["suspects"]) == ([], [0, 1])
    assert f"(gradient of {GRADIENT}). One of hosts 0, 1 computes wrong" in found["message"]
    assert "no majority" in found["message"]
    assert checkpoint_metadata.steps(tmp_path / "run" / "checkpoints") == [2]
