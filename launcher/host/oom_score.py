"""OOM scores: when memory runs out, the kernel ends the program first, not its monitors."""

import os
from contextlib import suppress
from pathlib import Path

OF_PROGRAMS = 1000
"""The score of a program and of all that it starts; 1000 is the kernel's maximum
(OOM_SCORE_ADJ_MAX in linux/oom.h)."""


def outlive_programs() -> None:
    """Gives this process, a worker of Ray, the score of its raylet; Ray gives workers 1000.

    Child processes inherit the score. If the kernel refuses, the score stays as it is.
    """
    with suppress(OSError):
        score = Path(f"/proc/{os.getppid()}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(score)
