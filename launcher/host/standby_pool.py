"""The standby processes of a warm cluster, which wait for the next run on it.

A program, `python -m launcher.host.standby_pool FOLDER COUNT`, among the processes of the cluster.
It starts COUNT trainers in its own environment. A launch that connects to the socket receives them
as offers, and stays connected until its run has ended. The trainers for the next run start then:
earlier, they would slow down this one.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from launcher.core.lending import Lender
from launcher.core.messages import Message
from launcher.host.offer import Offer
from launcher.host.process import HostProcess
from launcher.host.process_tree import ReaperError
from trainer.contract.protocol.environment import PROCESS_ID

SOCKET = "standby.sock"
"""Its name in the folder of the cluster."""
TRAINER = [sys.executable, "-m", "trainer"]
GRACE_S = 2.0
AT_MOST = 2 * len(os.sched_getaffinity(0))
"""Maximum number of standby processes that start at once: more would delay what else starts."""


@dataclass(frozen=True)
class Offered(Message):
    """What a launch receives when it connects."""

    kind: ClassVar = "offered"
    offers: Mapping[int, Offer]
    """Each process's trainer, without those that have ended."""


class Pool(Lender):
    """Lends the trainers that wait."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__(folder / SOCKET)
        self._folder, self._count = folder, count
        self._programs: dict[int, HostProcess] = {}

    def start(self) -> None:
        for process in range(self._count):
            environment = {**os.environ, PROCESS_ID: str(process)}
            command = [*TRAINER, "--standby"]
            with suppress(ReaperError):  # the launch starts one itself, and reports what is wrong
                self._programs[process] = HostProcess(
                    command, environment, None, self._folder, GRACE_S, is_standby=True
                )

    def offer(self) -> Offered:
        return Offered(
            {
                process: replace(program.offer(), command=TRAINER)
                for process, program in self._programs.items()
                if not program.has_ended()
            }
        )

    def end(self) -> None:
        """Closes the pipes of all trainers: those that were not taken over end."""
        while self._programs:
            with suppress(OSError):
                self._programs.popitem()[1].let_go()


def main() -> None:
    """Runs a pool until the cluster ends."""
    Pool(Path(sys.argv[1]), int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
