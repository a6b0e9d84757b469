"""The end of a program of the trainer."""

import os
import sys
from typing import NoReturn


def quick_exit(status: int) -> NoReturn:
    """Ends this process without Python's own shutdown.

    With jax imported, that takes 0.7 s of a core. Jaxlib's part of it would also wait for other
    processes of the run, which after a failure are gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
