"""Every `sh` block of the site runs: those of a page in one shell, in a copy of the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, blocks, copy_checkout, page_id, shrink_jobs
from tests.support.sampling import IS_FULL
from tests.support.xla_flags import FAST_COMPILATION

DEADLINE_S = 600
"""Seconds for the commands of a page, on a machine that has other work to do."""
pytestmark = [pytest.mark.docs, pytest.mark.timeout(DEADLINE_S + 60)]
WITH_COMMANDS = [path for path in PAGES if blocks(path, "sh")]
PRELUDE = """\
set -euo pipefail
uv() {  # `uv run` with this environment instead of a new one
    shift
    while [[ $1 == --* ]]; do shift 2; done
    "$@"
}
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose jobs are small: all pages together take CI half the time with it."""
    checkout = copy_checkout(tmp_path_factory.mktemp("checkout"))
    if not IS_FULL:
        shrink_jobs(checkout)
    return checkout


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_id)
def test_commands_of_page_succeed(page: Path, checkout: Path) -> None:
    script = PRELUDE + "set -x\n" + "\n".join(blocks(page, "sh"))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(checkout),
        "COLUMNS": "100",
        "XLA_FLAGS": "" if IS_FULL else FAST_COMPILATION,
    }
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, result.stdout[-4000:]
