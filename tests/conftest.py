"""What all tests share."""

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# Its stand-in is made of the client's own types: without the group there is nothing to import.
collect_ignore = [] if find_spec("grpc") else ["gcp"]

# A slow machine is no bug, and a failure must come again: no deadline, the same examples each run.
settings.register_profile("slipway", deadline=None, derandomize=True)
settings.load_profile("slipway")

# What is started with `nohup` or in the background ignores them, and all that it starts does too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_xdist_auto_num_workers() -> int:
    """Without `-n`: two, as on the smallest machine, on any other one too."""
    return 2


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The runs of tests are not remembered among the user's own."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder
