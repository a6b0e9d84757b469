"""Eight CPU devices for tests in this process, and caches of the test session's own.

What was compiled is all that outlives a session: another run of the tests takes half the time.
"""

import os

import jax
import pytest

from tests.support.xla_flags import FAST_COMPILATION
from trainer.contract.storage.cache_dirs import cache_folder
from trainer.contract.storage.compiled_programs import EXECUTABLES

COMPILED = cache_folder() / "compiled"


def _start_jax():
    """Small programs that run a few times: here most of the time is the compiler's."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_compilation_cache_dir", str(COMPILED))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    with pytest.MonkeyPatch.context() as patch:
        # Not for longer: the environment would reach the processes that other tests start.
        flags = os.environ.get("XLA_FLAGS", "")
        patch.setenv("XLA_FLAGS", f"{flags} {FAST_COMPILATION}")
        jax.devices()


_start_jax()


@pytest.fixture(scope="session")
def _cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    own = folder / "slipway"
    own.mkdir()
    for name in (COMPILED.name, EXECUTABLES):
        (cache_folder() / name).mkdir(parents=True, exist_ok=True)
        (own / name).symlink_to(cache_folder() / name)
    return folder


@pytest.fixture(scope="package", autouse=True)
def _own_caches(_cache):
    """For these tests alone: others start programs whose caches lie elsewhere, uv's among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(_cache))
        yield


@pytest.fixture
def text_job(tmp_path):
    """Makes a job on documents with the given texts: text_job(["one", "two"], steps=2)."""
    from tests.support.jobs import job_of

    def make(texts, **changes):
        for number, text in enumerate(texts):
            (tmp_path / f"{number:03d}.txt").write_text(text, encoding="utf-8")
        data = {"source": "text", "path": str(tmp_path / "*.txt"), **changes.pop("data", {})}
        return job_of(data=data, **changes)

    return make


@pytest.fixture(scope="session")
def served():
    """One for the session: tensorstore and gcsfs read only once where the store is."""
    from fsspec.config import conf

    from tests.support import object_store_server as stand_in

    bucket, server = stand_in.serve()
    variables = stand_in.environment(server)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        # fsspec has read its variables long ago.
        patch.setitem(conf, "gcs", {"token": variables["FSSPEC_GCS_TOKEN"]})
        yield bucket
    server.shutdown()
    server.server_close()


@pytest.fixture
def bucket(served):
    yield served
    served.status, served.writes_left = 200, float("inf")


@pytest.fixture
def storage(bucket, tmp_path) -> str:
    from tests.support.object_store_server import NAME

    return f"gs://{NAME}/{tmp_path.name}"
