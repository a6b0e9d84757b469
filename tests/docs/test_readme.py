"""The README's commands run, and its map and tables agree with the code."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, copy_checkout, shrink_jobs
from tests.support.sampling import IS_FULL
from tests.support.uv_cache import uv_cache
from tests.support.xla_flags import FAST_COMPILATION

FILE = ROOT / "README.md"
README = FILE.read_text(encoding="utf-8")
FIRST = "pip install uv && uv run launch --cluster local jobs/quickstart.yaml"
COMMANDS = [line for block in blocks(FILE, "sh") for line in block.splitlines() if line]
TESTS = [command for command in COMMANDS if command.startswith("uv run pytest")]
FEWER_STEPS = "" if IS_FULL else " steps=20"
"""Its 150 steps take CI two minutes; the loss has halved after 20."""
DEADLINE_S = 1200
MOST_LINES = 250


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


def test_first_commands_are_quickstart_and_tests() -> None:
    assert COMMANDS[:2] == [FIRST, "uv run pytest"]


def test_ci_runs_the_test_commands_of_the_readme() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [command for command in TESTS if not any(command in step for step in steps)] == []


def test_map_lists_every_folder() -> None:
    tree = README.partition("## Map\n")[2].partition("\n```\n\n")[0]
    named = Counter(re.findall(r"\w+(?=/)", tree.partition("clusters/")[0]))
    files = [*ROOT.glob("launcher/**/*.py"), *ROOT.glob("trainer/**/*.py")]
    folders = {path.parent.name for path in files} - {"explicit", "jax_plugins"}
    assert named.keys() == folders | {"any_program"}


@pytest.mark.slow
@pytest.mark.timeout(3 * DEADLINE_S)
def test_commands_run_in_a_new_environment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In order, in one folder, with nothing installed but Python and pip.

    The first command finds empty caches, and trains the quickstart as it is.
    """
    checkout = copy_checkout(tmp_path_factory.mktemp("checkout"))
    subprocess.run([sys.executable, "-m", "venv", str(checkout / "python")], check=True)
    path = os.pathsep.join([str(checkout / "python" / "bin"), "/usr/bin", "/bin", "/usr/sbin"])
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment = {
        **{k: v for k, v in kept.items() if not k.startswith("UV_PROJECT")},
        "PATH": path,
        "UV_CACHE_DIR": uv_cache(),
    }
    without_caches = {**environment, "XDG_CACHE_HOME": str(checkout / "cache")}
    quickstart = run(FIRST + FEWER_STEPS, checkout, without_caches)
    if not IS_FULL:
        shrink_jobs(checkout)
        environment["XLA_FLAGS"] = FAST_COMPILATION
    for command in COMMANDS:
        if command != FIRST and command not in TESTS:
            run(command, checkout, environment)
    losses = re.search(r"loss (\S+) -> ([\d.]+)", quickstart)
    assert losses and float(losses[2]) < float(losses[1]) / 2
    packages = run("uv pip list --quiet", checkout, environment).splitlines()
    assert len(packages) - 2 < 90
    assert not [line for line in packages if line.startswith(("torch", "libtpu"))]
    shutil.rmtree(checkout)


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    return result.stdout
