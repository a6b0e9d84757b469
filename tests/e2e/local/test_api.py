"""The Python API by use: plan, run on two simulated hosts, watch, stop, resume on one."""

import importlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import launcher
import trainer
from launcher import RunHandle, SlipwayError, find_run, list_runs, plan, resume, run
from launcher.core.errors import JobError, UsageError
from launcher.planning.planner import TrainingLaunch
from launcher.runs.goodput import Part
from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until
from trainer import Data, Job, Model
from trainer.contract.protocol.events import StepEvent

CLUSTER = (
    "{accelerator: cpu, hosts: {min: 1, max: 2}, devices_per_host: 1, provider: {kind: local}}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "text.txt").write_text("a text to learn from. " * 400)
    return folder


@pytest.fixture(scope="module", autouse=True)
def traces(folder: Path) -> Iterator[Traces]:
    """The environment of these tests, in which nothing is left at the end."""
    before, start = dict(os.environ), Path.cwd()
    with Traces() as traces:
        os.environ.update(traces.environment)
        os.chdir(folder)
        yield traces
        os.chdir(start)
        os.environ.clear()
        os.environ.update(before)


def job(**changes: object) -> Job:
    data = {"source": "text", "path": "text.txt", "seq_len": 16, "global_batch": 4}
    model = Model.model_validate({"layers": 1, "d_model": 16, "heads": 2, "d_ff": 32})
    return Job(name="small", steps=2, model=model, data=Data.model_validate(data)).model_copy(
        update=changes
    )


def planned(**changes: object) -> TrainingLaunch:
    spec = plan(job(**changes), cluster="cluster.yaml", simulate=True, simulate_hosts=2)
    assert isinstance(spec, TrainingLaunch)
    return spec


def test_a_plan_of_a_job_object_takes_overrides_like_a_file() -> None:
    spec = plan(job(), cluster="cluster.yaml", overrides={"steps": 20, "mesh.fsdp": 2})
    assert isinstance(spec, TrainingLaunch)
    assert spec.steps == 20
    assert spec.plan.mesh["fsdp"] == 2
    assert not Path("runs").exists()


def test_a_plan_on_known_chips_has_bounds_of_its_step_time() -> None:
    on_cpu, on_tpu = plan(job(), cluster="cluster.yaml"), plan(job(), cluster="v4-8")
    assert on_cpu.bounds is None
    assert on_tpu.bounds and 0 < on_tpu.bounds.mfu <= 1


def test_plan_that_does_not_fit_raises_error_with_exit_code() -> None:
    with pytest.raises(SlipwayError, match=r"steps") as caught:
        plan(job(), cluster="cluster.yaml", overrides=["steps=none"])
    assert caught.value.exit_code == 2


@pytest.fixture(scope="module")
def stopped(traces: Traces) -> RunHandle:
    """A run on two simulated hosts in the background, watched by its events and then stopped."""
    handle = run(planned(steps=100_000), detach=True, progress=False)
    assert handle.status().is_alive
    for event in handle.events():
        if isinstance(event, StepEvent) and event.step >= 3:
            break
    find_run("small").stop()
    return handle


def test_a_detached_run_is_watched_and_stopped_with_a_checkpoint(stopped: RunHandle) -> None:
    status = stopped.wait()
    assert (status.state, status.is_alive, status.exit_code) == ("stopped", False, 130)
    assert status.step is not None and status.step >= 3
    assert status.last_checkpoint == status.step
    assert list_runs()[0].name == "small"
    assert any(line.startswith("host 0 ") for line in stopped.logs())
    assert not any(line.startswith("host 0 ") for line in stopped.logs(0))
    assert stopped.fetch() == Path("runs/small").absolute()


def test_the_goodput_of_a_stopped_run_counts_its_steps(stopped: RunHandle) -> None:
    goodput = stopped.goodput()
    assert goodput.share and 0 < goodput.share < 1
    assert goodput.seconds[Part.STEPS] > 0


def test_a_run_of_the_same_name_is_refused(stopped: RunHandle) -> None:
    with pytest.raises(UsageError, match="--fresh"):
        run(planned(), progress=False)


def test_a_stopped_run_resumes_on_one_host_and_finishes(stopped: RunHandle, traces: Traces) -> None:
    before = stopped.status().step
    assert before is not None
    printed = io.StringIO()
    with redirect_stdout(printed):
        resumed = resume(stopped, overrides={"steps": before + 2}, simulate_hosts=1)
    status = resumed.wait()
    assert (status.state, status.step, status.attempt) == ("finished", before + 2, 2)
    assert f"small continues after step {before}: attempt 2" in printed.getvalue()
    assert f"finished {before + 2} steps" in printed.getvalue()
    traces.assert_nothing_left(timeout_s=10.0)


@pytest.mark.slow
def test_failed_job_raises_reason_with_last_lines_of_host(
    traces: Traces,
) -> None:
    spec = plan(job(name="blind"), cluster="cluster.yaml", overrides={"data.path": "none/*.txt"})
    with pytest.raises(JobError, match=r"no file matches 'none/\*\.txt'") as caught:
        run(spec, progress=False)
    assert caught.value.run_dir == Path("runs/blind").absolute()
    assert find_run("blind").status().state == "failed"


INTERRUPTED = """\
import os, signal, sys, threading, time
from launcher import plan, run, find_run
from launcher.core.errors import InterruptError

def interrupt():
    while True:
        time.sleep(0.2)
        try:
            if find_run("cut").status().step:
                break
        except Exception:
            continue
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    run(plan("job.yaml", cluster="cluster.yaml", simulate=True, overrides={"name": "cut"}))
except InterruptError as error:
    print(find_run("cut").status().state, signal.getsignal(signal.SIGINT).__name__)
"""


@pytest.mark.slow
def test_ctrl_c_in_a_program_that_runs_a_job_leaves_no_process_behind(
    folder: Path, traces: Traces
) -> None:
    from trainer.contract.config.loader import dump

    (folder / "job.yaml").write_text(dump(job(steps=100_000)))
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.splitlines()[-1] == "interrupted default_int_handler", ended.stderr
    wait_until(lambda: not find_run("cut").status().is_alive)
    traces.assert_nothing_left(timeout_s=10.0)


@pytest.mark.parametrize("package", [launcher, trainer])
def test_every_public_name_exists_and_another_one_is_an_error(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = package.other  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("package", "absent"),
    [("launcher", {"pydantic", "rich", "ray", "jax"}), ("trainer", {"pydantic", "jax", "flax"})],
)
def test_importing_a_package_loads_none_of_its_libraries(package: str, absent: set[str]) -> None:
    code = f"import sys, {package}; print(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert absent.isdisjoint(name.strip("[]', \n") for name in modules.split(","))


def test_the_reference_page_lists_the_public_names() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "python-api.md"
    if not page.exists():
        pytest.skip("the page does not exist yet")
    text = page.read_text()
    for package in ("launcher", "trainer"):
        names = importlib.import_module(package).__all__
        assert [name for name in names if name not in text] == []
