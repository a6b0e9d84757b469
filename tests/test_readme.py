"""Every command that the README shows is run, as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.uv_cache import uv_cache

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line and line[0] != "#"]
QUICK = ("launch plan", "--dry-run", "launch --help")
"""What only looks: the other commands train, and are slow."""
TESTS = [command for command in COMMANDS if command.startswith("uv run pytest")]
DEADLINE_S = 1200


def is_quick(command: str) -> bool:
    return any(words in command for words in QUICK)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files under version control as they are now, alone in a new folder."""
    folder = tmp_path_factory.mktemp("checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


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


@pytest.mark.parametrize("command", [c for c in COMMANDS if is_quick(c)])
def test_a_command_that_only_looks(command: str, checkout: Path) -> None:
    """With the packages that this test runs on: no second environment."""
    here = f"{sys.executable} -m launcher"
    environment = {**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "100"}
    assert run(command.replace("uv run launch", here), checkout, environment).strip()


@pytest.mark.slow
@pytest.mark.timeout(3 * DEADLINE_S)
def test_all_other_commands_in_a_new_environment(checkout: Path) -> None:
    """In order, in one folder, with nothing installed but Python and pip; then nothing is left."""
    for name in ("python", "cache"):
        shutil.rmtree(checkout / name, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(checkout / "python")], check=True)
    path = os.pathsep.join([str(checkout / "python" / "bin"), "/usr/bin", "/bin", "/usr/sbin"])
    kept = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment = {
        **{k: v for k, v in kept.items() if not k.startswith("UV_PROJECT")},
        "PATH": path,
        "XDG_CACHE_HOME": str(checkout / "cache"),
        "UV_CACHE_DIR": uv_cache(),
    }
    outputs = {
        command: run(command, checkout, environment)
        for command in COMMANDS
        if command not in TESTS and not is_quick(command)
    }
    quickstart = next(text for command, text in outputs.items() if "--cluster local" in command)
    losses = re.search(r"loss (\S+) -> ([\d.]+)", quickstart)
    assert losses and float(losses[2]) < float(losses[1]) / 2
    packages = run("uv pip list --quiet", checkout, environment).splitlines()
    assert len(packages) - 2 < 90
    assert not [line for line in packages if line.startswith(("torch", "libtpu"))]


def test_ci_runs_the_test_commands_of_the_readme() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "uv run pytest" in TESTS
    assert [command for command in TESTS if f"step {command}" not in steps] == []


def test_the_model_that_is_shown_is_the_one_that_is_there() -> None:
    assert (ROOT / "jobs" / "own_model.py").read_text(encoding="utf-8") in README


def test_the_map_has_every_folder() -> None:
    tree = README.partition("## Map\n")[2].partition("\n```\n\n")[0]
    named = Counter(re.findall(r"\w+(?=/)", tree.partition("clusters/")[0]))
    files = [*ROOT.glob("launcher/**/*.py"), *ROOT.glob("trainer/**/*.py")]
    folders = {path.parent.name for path in files} - {"explicit", "jax_plugins"}
    assert named.keys() == folders | {"any_program"}


def test_the_tests_that_are_named_exist() -> None:
    """Those of the table of faults."""
    named = set(re.findall(r"`(test_\w+)`", README))
    written = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in written] == []
