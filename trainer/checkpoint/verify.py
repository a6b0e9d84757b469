"""`python -m trainer.checkpoint.verify STEP_FOLDER...`: reads every array, one after the other.

Prints a line of JSON for each, {"step", "ok", "problem"}; ends with 1 where one is not whole.
"""

import argparse
import json
import os
import sys

from etils import epath

from trainer.spec import checkpoints
from trainer.spec.config import ConfigError
from trainer.spec.places import place


def main() -> int:
    """Checks the folders that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.checkpoint.verify", description=__doc__
    )
    parser.add_argument("folders", nargs="+", metavar="STEP_FOLDER")
    try:
        folders = [place(folder) for folder in parser.parse_args().folders]
    except ConfigError as error:
        parser.error(str(error))
    problems = [_check(folder) for folder in folders]
    return 1 if any(problems) else 0


def _check(folder: epath.Path) -> str:
    problem = _problem(folder)
    step = int(folder.name) if folder.name.isdecimal() else None
    print(json.dumps({"step": step, "ok": not problem, "problem": problem}), flush=True)
    return problem


def _problem(folder: epath.Path) -> str:
    """What is wrong with a checkpoint, in words; "": nothing."""
    from trainer.checkpoint.restore import cause
    from trainer.checkpoint.weights import Arrays

    try:
        about = checkpoints.read(folder)
        for name, array in Arrays(folder, about).items():
            assert array.shape == about.arrays[name].shape
    except checkpoints.BrokenError as error:
        return str(error)
    except Exception as error:  # tensorstore has many
        return cause(error)
    return ""


if __name__ == "__main__":
    # The state was made for many devices; a look at it needs none of them.
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.exit(main())
