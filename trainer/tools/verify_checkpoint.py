"""`python -m trainer.tools.verify_checkpoint STEP_FOLDER...`: reads every array, one by one.

Prints a line of JSON per folder, {"folder", "ok", "problem"}. Exits with 1 when one has a problem.
"""

import argparse
import json
import os

from etils import epath

from trainer.contract.config.loader import ConfigError
from trainer.contract.records import checkpoint_metadata
from trainer.contract.storage.paths import to_path
from trainer.contract.storage.retries import retried
from trainer.distributed.quick_exit import quick_exit


def main() -> int:
    """Checks the folders named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.tools.verify_checkpoint", description=__doc__
    )
    parser.add_argument("folders", nargs="+", metavar="STEP_FOLDER")
    names = parser.parse_args().folders
    try:
        folders = [to_path(name) for name in names]
    except ConfigError as error:
        parser.error(str(error))
    problems = [_check(folder, name) for folder, name in zip(folders, names, strict=True)]
    return 1 if any(problems) else 0


def _check(folder: epath.Path, name: str) -> str:
    problem = _problem(folder)
    print(json.dumps({"folder": name, "ok": not problem, "problem": problem}), flush=True)
    return problem


def _problem(folder: epath.Path) -> str:
    """Returns what is wrong with a checkpoint, or "" when nothing is."""
    from trainer.checkpoint.damage import judged

    try:
        retried(str(folder), lambda: _read(folder))
    except Exception as error:  # tensorstore raises many types
        return str(judged(str(folder), error))
    return ""


def _read(folder: epath.Path) -> None:
    from trainer.checkpoint.weights import Arrays

    about = checkpoint_metadata.read(folder)
    for name, array in Arrays(folder, about).items():
        assert array.shape == about.shape(name)


if __name__ == "__main__":
    # The state was made for many devices; reading it needs none of them.
    os.environ["JAX_PLATFORMS"] = "cpu"
    quick_exit(main())
