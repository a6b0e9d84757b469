"""The standby processes of a warm cluster, which wait for the next run on it.

A program, `python -m launcher.host.standby_pool FOLDER COUNT`, among the processes of the cluster.
It starts COUNT trainers in its own environment. A launch that connects to the socket receives them
as offers, and stays connected until its run has ended. The trainers for the next run start then:
earlier, they would slow down this one.
"""

import os
import select
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from launcher.core.errors import InternalError
from launcher.core.messages import Message, MessageReader, encode
from launcher.host.offer import Offer
from launcher.host.process import HostProcess
from launcher.host.process_tree import ReaperError
from trainer.contract.protocol.environment import PROCESS_ID

SOCKET = "standby.sock"
"""Its name in the folder of the cluster."""
TRAINER = [sys.executable, "-m", "trainer"]
GRACE_S = 2.0
ANSWER_TIMEOUT_S = 5.0
"""Seconds that each side waits for a message of the other one."""
AT_MOST = 2 * len(os.sched_getaffinity(0))
"""Maximum number of standby processes that start at once: more would delay what else starts."""
TAKEN = b"taken\n"
"""What a launch sends when it needs the pool's own ends of the pipes no longer."""


@dataclass(frozen=True)
class Request(Message):
    """A launch asks for the trainers of all its processes."""

    kind: ClassVar = "request"


@dataclass(frozen=True)
class Offered(Message):
    """The answer."""

    kind: ClassVar = "offered"
    offers: Mapping[int, Offer]
    """Each process's trainer, without those that have ended."""


class Pool:
    """The trainers that wait, and the one launch that holds them."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._programs: dict[int, HostProcess] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / SOCKET))
        self._holder: socket.socket | None = None

    def serve(self) -> None:
        """Serves one launch after the other. A launch that comes meanwhile gets nothing."""
        self._start()
        self._server.listen()
        while True:
            for ready in select.select([self._server, *filter(None, [self._holder])], [], [])[0]:
                if ready is self._server:
                    self._admit(self._server.accept()[0])
                elif _is_connected(ready):
                    self._let_go()  # it has sent TAKEN
                else:
                    self._end_loan(ready)

    def _admit(self, launch: socket.socket) -> None:
        if self._holder is not None:
            launch.close()
            return
        self._holder = launch
        launch.settimeout(ANSWER_TIMEOUT_S)
        try:
            line = launch.makefile("rb").readline()
            request = MessageReader([Request], "a launch", InternalError).parse(line)
            launch.sendall(encode(Offered(self._offers() if request else {})))
        except (OSError, InternalError) as error:
            print(error, file=sys.stderr, flush=True)
            self._end_loan(launch)

    def _end_loan(self, launch: socket.socket) -> None:
        launch.close()
        self._holder = None
        self._let_go()
        self._start()

    def _start(self) -> None:
        for process in range(self._count):
            environment = {**os.environ, PROCESS_ID: str(process)}
            command = [*TRAINER, "--standby"]
            with suppress(ReaperError):  # the launch starts one itself, and reports what is wrong
                self._programs[process] = HostProcess(
                    command, environment, None, self._folder, GRACE_S, is_standby=True
                )

    def _offers(self) -> dict[int, Offer]:
        return {
            process: replace(program.offer(), command=TRAINER)
            for process, program in self._programs.items()
            if not program.has_ended()
        }

    def _let_go(self) -> None:
        """Closes the pipes of all trainers: those that were not taken over end."""
        while self._programs:
            with suppress(OSError):
                self._programs.popitem()[1].let_go()


def _is_connected(launch: socket.socket) -> bool:
    """Returns whether a launch whose socket is readable has sent something, and has not ended."""
    try:
        return bool(launch.recv(len(TAKEN)))
    except OSError:  # it was killed before it read its answer
        return False


def main() -> None:
    """Runs a pool until the cluster ends."""
    Pool(Path(sys.argv[1]), int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
