"""What all tests share."""

import gc
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.longest_first import sort_longest_first
from tests.support.sampling import deselect_full
from tests.support.skipped_tests import (
    pytest_collectreport,
    pytest_runtest_logreport,
    pytest_sessionfinish,
)

__all__ = [
    "pytest_collectreport",
    "pytest_runtest_logreport",
    "pytest_sessionfinish",
]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


# The stand-in uses the client's own types, which only the group `gcp` installs.
collect_ignore = [] if _is_installed("google.cloud.tpu_v2") else ["e2e/gcp", "integration/gcp"]

GROUPS = {
    "docs", "gcp", "interchange", "jobs_api", "kubernetes", "object_store", "parquet",
    "tpu_compiler", "wandb",
}  # fmt: skip
"""Markers of tests that need a dependency group; each is the name of the group."""

# A slow machine is no bug, and a failure must come again: no deadline, the same examples each run.
settings.register_profile("slipway", deadline=None, derandomize=True)
settings.load_profile("slipway")

# What is started with `nohup` or in the background ignores them, and all that it starts does too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests that need a group as `group`, leaves out `full` variants, and orders files."""
    for item in items:
        if GROUPS & {mark.name for mark in item.iter_markers()}:
            item.add_marker("group")
    deselect_full(config, items)
    sort_longest_first(items)


def pytest_collection_finish() -> None:
    """Lets Python's collector leave out what exists now, and run less often.

    Otherwise it takes about a tenth of the time of a small JAX program.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 10)


def pytest_xdist_auto_num_workers() -> int:
    """Without `-n`: two, as on the smallest machine, on any other one too."""
    return 2


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests neither add to the user's own runs nor read the user's configuration."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        yield folder


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group of 60 MB: what joins it has no more."""
    root = Path("/sys/fs/cgroup")
    is_old = (root / "memory" / "cgroup.procs").exists()
    group = root / ("memory" if is_old else "") / f"slipway-{os.getpid()}"
    limit = "memory.limit_in_bytes" if is_old else "memory.max"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"makes a control group: {error}")
    try:
        (group / limit).write_text("60000000")
    except OSError as error:
        group.rmdir()
        pytest.skip(f"limits the memory of a control group: {error}")
    yield group
    group.rmdir()
