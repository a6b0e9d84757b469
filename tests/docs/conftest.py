"""The site, built once for the tests that need it."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer

from tests.docs.pages import DOCS
from tests.support.browser import chromium
from tests.support.docs_scheduler import DocsScheduler

# Without the group there is no browser to drive.
collect_ignore = [] if find_spec("selenium") else ["test_browser.py", "test_report_page.py"]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> DocsScheduler:
    """Spreads the pages over the workers, and keeps the site on one."""
    return DocsScheduler(config, log)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; warnings are errors, dead internal links among them."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", DOCS, folder / "html"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert built.returncode == 0, built.stdout
    return folder / "html"
