"""`python -m launcher.providers.ray_jobs.entrypoint ORDER`: Slipway's job on the cluster's head.

See order.py for ORDER. A run's folder is the last thing printed.
The job's working directory is the project's root.
Only the standard library is used until the cluster's Python is known to have the other packages.
"""

import base64
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.core.exit_codes import BAD_USAGE, NO_CLUSTER

if TYPE_CHECKING:
    from launcher.providers.ray_jobs.order import JobOrder

BEGINS = "slipway: the job has begun"
"""First line of this program; Ray's own output precedes it."""
FOLDER = "slipway: the run's folder: "
"""Prefix of the line with a compressed tar file in base 64."""


def main() -> int:
    print(BEGINS, flush=True)
    if missing := lacking((Path.cwd() / "pyproject.toml").read_text(encoding="utf-8")):
        print(
            f"error: the cluster's Python, {sys.executable}, lacks {', '.join(missing)}. Install "
            "the packages of the project's uv.lock on its hosts (uv sync --locked), as in one image"
        )
        return NO_CLUSTER
    signal.signal(signal.SIGTERM, lambda *_: None)  # Ray signals `launch` too, which then saves
    return _serve(sys.argv[1])


def _serve(argument: str) -> int:
    from launcher.core.errors import HostError
    from launcher.providers.ray.raylets import cluster_of_this_process
    from launcher.providers.ray_jobs.order import CommandOrder, unpack

    # Ray sets RAY_ADDRESS to any cluster of this machine, which may be a node of several.
    if address := cluster_of_this_process():
        os.environ["RAY_ADDRESS"] = address
    try:
        order = unpack(argument)
    except HostError as error:
        print(f"error: {error}")
        return NO_CLUSTER
    root = Path.cwd()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    os.chdir(root / order.below)
    if isinstance(order, CommandOrder):
        return _launch([*order.args, "--runs", str(Path(order.runs).expanduser())])
    return _run(order)


def lacking(project: str) -> list[str]:
    """Returns the packages that a pyproject.toml requires and that are not installed here."""
    import tomllib

    from packaging.requirements import Requirement

    named = tomllib.loads(project).get("project", {}).get("dependencies", [])
    needed = [r for r in map(Requirement, named) if r.marker is None or r.marker.evaluate()]
    return [need.name for need in needed if not _has(need.name)]


def _has(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def _launch(args: list[str]) -> int:
    return subprocess.call([sys.executable, "-m", "launcher", *args])


def _run(order: "JobOrder") -> int:
    run = replace(order.run, runs=str(Path(order.run.runs).expanduser()))
    folder = Path(run.runs) / run.name
    with tempfile.TemporaryDirectory(prefix="slipway-job-") as temporary:
        os.environ.update(run.environment)
        code = _launch(run.arguments(Path(temporary), order.provider))
    if code != BAD_USAGE and folder.is_dir():
        print(FOLDER + base64.b64encode(_packed(folder)).decode(), flush=True)
    return code


def _packed(folder: Path) -> bytes:
    """Returns a run's folder as a compressed tar file, without checkpoints and hidden files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(folder.iterdir()):
            if not re.match(r"checkpoints$|\.", path.name):
                archive.add(path, path.name)
    return packed.getvalue()


if __name__ == "__main__":
    sys.exit(main())
