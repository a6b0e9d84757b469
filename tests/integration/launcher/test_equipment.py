"""What a host of somebody else's cluster must have."""

import os
import subprocess
import sys
from pathlib import Path

from launcher.gang.environment_check import CODE
from launcher.host import environment_check
from launcher.host.environment_check import lacking


def test_this_machine_lacks_nothing_of_its_own(tmp_path: Path) -> None:
    assert lacking(sys.executable, str(CODE), str(tmp_path)) == []


def test_everything_that_is_missing_is_named_at_once() -> None:
    assert lacking("/no/python", "/no/launcher", "/no/work") == [
        "no Python at /no/python",
        "no Slipway at /no/launcher",
        "no working folder /no/work",
    ]


def test_a_host_without_slipway_can_look_for_it_all_the_same() -> None:
    """Its source is sent there: it imports nothing but Python's own library."""
    code = f"{Path(environment_check.__file__).read_text()}\nprint(lacking('/a', '/b', '/'))"
    bare = [sys.executable, "-I", "-S", "-c", code]
    told = subprocess.run(bare, cwd=os.sep, capture_output=True, text=True, check=True).stdout
    assert "no Slipway at /b" in told
