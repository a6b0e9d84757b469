"""Inside a job: starts a Ray node on each host with one `srun`, and reads their messages."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from launcher.cluster.slurm import Slurm
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.messages import Message, MessageReader, encode
from launcher.host.process_tree import ProcessTree
from launcher.planning.spec import LaunchSpec
from launcher.providers.base import HostProvider
from launcher.providers.ray.host_cluster import WarmCluster
from launcher.providers.ray.host_protocol import Failed, HeadPort, NodeUp
from launcher.providers.ray.node_group import START_TIMEOUT_PER_HOST_S, START_TIMEOUT_S
from launcher.providers.ray.workspace import new_token, private_folder, write_token
from launcher.providers.slurm.node_protocol import (
    ANSWER_TYPES,
    HeadAddress,
    HostAddress,
    JobOrder,
    SignalReceived,
    TaskAnswer,
)
from trainer.contract.planning.plan import World
from trainer.contract.protocol.process_names import host_name

NODE = "launcher.providers.slurm.node_entrypoint"
SRUN = ["srun", "--overlap", "--ntasks-per-node=1", "--distribution=block", "--cpu-bind=none",
        "--kill-on-bad-exit=1", "--wait=0", "--label", "--unbuffered"]  # fmt: skip
ENDING_TIMEOUT_S = 60.0
TAIL_LINES = 20


class SlurmProvider(HostProvider):
    """Starts Ray on the hosts of the Slurm job that this process runs in."""

    def __init__(self, settings: Slurm) -> None:
        del settings  # they are sbatch's, see executors/slurm.py

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        """Does nothing: sbatch checks the request."""

    @contextmanager
    def allocate(self, spec: LaunchSpec, listener: Listener) -> Iterator[WarmCluster]:
        """Yields the hosts of this job; stops their Ray nodes on exit.

        Raises HostError with the hosts that are missing.
        """
        listener.on_status("starting Ray on the hosts of this job")
        folder = private_folder()
        reaped = ProcessTree(folders=[folder])
        try:
            with _Step(spec.provisioned_world, folder) as step:
                token = new_token()
                token_path = write_token(folder, token)
                address, port = step.start(token, listener.on_status)
                yield WarmCluster(f"{address}:{port}", address, token_path)
        finally:
            reaped.close()


class _Step:
    """The tasks of one `srun`; they end when its input is closed."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._errors = folder / "srun.log"
        srun = [*SRUN, f"--nodes={world.hosts}", f"--ntasks={world.hosts}"]
        with self._errors.open("wb") as errors:
            self._srun = subprocess.Popen(
                [*srun, sys.executable, "-m", NODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # this process forwards Ctrl-C
            )
        assert self._srun.stdin and self._srun.stdout
        self._orders = self._srun.stdin
        self._answers: queue.SimpleQueue[tuple[int, TaskAnswer] | HostError | None] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._listen, args=[self._srun.stdout], daemon=True).start()

    def start(self, token: str, on_status: Callable[[str], None]) -> tuple[str, int]:
        """Starts all Ray nodes; returns the head's address and port. Raises HostError."""
        total = self._world.hosts
        limit_s = START_TIMEOUT_S + START_TIMEOUT_PER_HOST_S * total
        deadline = time.monotonic() + limit_s
        addresses: dict[int, str] = {}
        up: set[int] = set()
        port = 0
        self._send(JobOrder(token, self._world))
        while len(up) < total:
            process, answer = self._next(deadline, limit_s, up)
            match answer:
                case HostAddress(ip=ip):
                    addresses[process] = ip
                case HeadPort(port=port):
                    self._send(HeadAddress(addresses[process], port))
                case NodeUp():
                    up.add(process)
                    on_status(f"{len(up)} of {total} Ray nodes are up")
                case Failed(reason=reason):
                    raise HostError(f"{host_name(process)}: {reason}")
                case SignalReceived():
                    pass
        return addresses[0], port

    def __enter__(self) -> "_Step":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._orders.close()
        try:
            self._srun.wait(ENDING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._srun.kill()  # Slurm ends its tasks with the job, soon after
            self._srun.wait()

    def _send(self, order: Message) -> None:
        try:
            self._orders.write(encode(order))
            self._orders.flush()
        except OSError:
            raise HostError(self._missing(set(), "srun has ended")) from None

    def _next(self, deadline: float, limit_s: float, up: set[int]) -> tuple[int, TaskAnswer]:
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise HostError(self._missing(up, f"waited {limit_s:.0f} s")) from None
        if isinstance(answer, HostError):
            raise answer
        if answer is None:
            raise HostError(self._missing(up, "srun has ended"))
        return answer

    def _missing(self, up: set[int], why: str) -> str:
        missing = [host_name(p) for p in range(self._world.hosts) if p not in up]
        last_lines = self._errors.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
        head = f"no Ray node started on {', '.join(missing)}: {why}"
        return "\n  ".join([head, *last_lines])

    def _listen(self, answers: IO[bytes]) -> None:
        """Reads answers; each line of `srun --label` begins with the number of its task."""
        for line in answers:
            task, _, rest = line.partition(b":")
            if task.strip().isdigit():
                self._on_answer(int(task), rest)
        self._answers.put(None)

    def _on_answer(self, process: int, line: bytes) -> None:
        reader = MessageReader(ANSWER_TYPES, host_name(process), HostError)
        try:
            answer = reader.parse(line)
        except HostError as error:
            self._answers.put(error)
            return
        if isinstance(answer, SignalReceived) and answer.number == signal.SIGTERM:
            os.kill(os.getppid(), signal.SIGTERM)  # the batch script, which forwards it once
        elif answer is not None:
            self._answers.put((process, answer))
