"""A folder that cannot hold all hosts' checkpoints is refused before the first step, on all."""

import pytest

from tests.support import gang
from tests.support.jobs import job_of, world_of

pytestmark = pytest.mark.slow
JOB = {"checkpoint": {"every_steps": 1}, "storage": "~/checkpoints"}


@pytest.fixture
def homes(tmp_path):
    """Two hosts, each with a home of its own: `~` is not shared."""
    homes = {process: tmp_path / f"home-{process}" for process in range(2)}
    for home in homes.values():
        home.mkdir()
    return homes


def _run(tmp_path, homes, **changes):
    run_dir = tmp_path / "run"
    cache = str(tmp_path / "cache")
    env = {p: {"HOME": str(home), "XDG_CACHE_HOME": cache} for p, home in homes.items()}
    job = job_of(**{**JOB, **changes})
    return gang.wait(run_dir, gang.start(job, world_of(2, 1), run_dir, host_env=env))


def test_a_folder_that_the_hosts_do_not_share_is_named(tmp_path, homes):
    ended = _run(tmp_path, homes)
    assert ended.codes == [64, 64], "\n".join(ended.outputs)
    for output in ended.outputs:
        assert "host-0001:" in output and "the hosts do not share it" in output
        assert "Set storage to a folder" in output
    assert "step" not in [event["event"] for event in ended.events]


def test_a_host_that_cannot_write_is_named(tmp_path, homes):
    (homes[1] / "checkpoints").write_text("a file where a folder should be")
    ended = _run(tmp_path, homes)
    assert ended.codes == [64, 64], "\n".join(ended.outputs)
    assert all("host-0001:" in output for output in ended.outputs)


def test_a_folder_of_another_run_is_refused_on_all(tmp_path, homes):
    storage = str(tmp_path / "shared")
    homes = dict.fromkeys(homes, homes[0])
    (tmp_path / "shared/tiny/checkpoints").mkdir(parents=True)
    lease = '{"run_id": "another", "attempt": 1, "id": "x"}'
    (tmp_path / "shared/tiny/checkpoints/lease.json").write_text(lease)
    ended = _run(tmp_path, homes, storage=storage)
    assert ended.codes == [64, 64], "\n".join(ended.outputs)
    assert all("checkpoints of another run" in output for output in ended.outputs)
