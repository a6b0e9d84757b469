"""The actor that runs on each host: starts the host's program, and hands over what it says.

The program's tree ends when the actor does, whatever ends it, and the actor ends itself when nobody
has asked it anything for `LEASE_S`, or when its Ray node is gone: a driver that vanished leaves
nothing running, and a host that is lost does not go on beside the one that replaces it.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.host import preflight
from launcher.host.oom_score import outlive_programs
from launcher.host.preemption_notice import Notices
from launcher.host.preflight import HostReport
from launcher.host.process import SEARCH_PATHS, HostProcess, OutputUpdate
from launcher.host.proxy_env import reach_directly
from launcher.host.run_dir_mirror import CopiedFolder

LEASE_S = 60.0
LOOK_S = 0.5
NOTICE = "preemption_notice"
"""The event of a host that is about to be taken away."""
NOT_FOR_PROGRAMS = ("RAY_",)


class Agent:
    """One per host. Ray calls its methods from several threads: `stop` must not wait for `poll`."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._program: HostProcess | None = None
        self._copied: CopiedFolder | None = None
        self._asked_at = time.monotonic()
        outlive_programs()
        self._notices = Notices()
        threading.Thread(target=self._end_when_alone, daemon=True).start()

    def address(self) -> str:
        """Of this host, as the others reach it."""
        import ray.util

        self._asked_at = time.monotonic()
        return ray.util.get_node_ip_address()

    def listening_address(self, wanted: int | None) -> tuple[str, int]:
        """Where the coordinator listens: at the address that the hosts use, and nowhere else.

        Its port is `wanted` where that is free, else one that is. The address is "" (all of them)
        where the one that the hosts use is none of this host's own, as behind NAT.
        """
        address = preflight.own_address(self.address())
        for port in (wanted, 0) if wanted else (0,):
            with socket.socket() as probe:
                try:
                    probe.bind((address, port))
                except OSError:
                    continue
                return address, probe.getsockname()[1]
        raise OSError("no free port")

    def look(self, folder: str, platform: str) -> HostReport:
        """At this host, for a run in that folder on accelerators of that platform."""
        return preflight.run_preflight(self.address(), Path(folder), platform)

    def listen(self) -> int:
        """A port where others can try whether they reach this host."""
        self._asked_at = time.monotonic()
        return preflight.listen(self.address())

    def unreachable(self, address: str, port: int) -> str:
        """Why another host cannot be reached from this one; "": it can."""
        self._asked_at = time.monotonic()
        return preflight.unreachable(address, port)

    def sees(self, path: str) -> bool:
        """Whether a file of the launcher's machine is here too."""
        self._asked_at = time.monotonic()
        return Path(path).exists()

    def receive(
        self, folder: str, files: Mapping[str, str], followed: list[str], made: list[str]
    ) -> str:
        """Make a copy of the run's folder here, before a start; why that cannot be, "" if it is."""
        self._asked_at = time.monotonic()
        try:
            if self._copied is not None:
                self._copied.close()
            self._copied = CopiedFolder(Path(folder), files, followed, made)
        except OSError as error:
            return f"{folder} cannot be written: {error.strerror}"
        return ""

    def written(self) -> dict[str, bytes]:
        """What was added to that copy's files since; see CopiedFolder."""
        self._asked_at = time.monotonic()
        return self._copied.written() if self._copied is not None else {}

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: str,
        cwd: str,
        grace_s: float,
        hosts: Sequence[str],
    ) -> None:
        """Start the host's program; `environment` is added to the host's own.

        `hosts`: the addresses of all hosts, which the program reaches without a proxy.
        """
        self._asked_at = time.monotonic()
        whole = reach_directly(hosts, add(environment, host_environment()))
        self._program = HostProcess(command, whole, Path(log), Path(cwd), grace_s)

    def poll(self, wait_s: float) -> OutputUpdate:
        """What the program said since; waits up to `wait_s` for something."""
        self._asked_at = time.monotonic()
        assert self._program is not None
        batch = self._program.poll(wait_s)
        for text in self._notices.take():
            batch.events.append({"event": NOTICE, "time": time.time(), "message": text})
        return batch

    def stop(self, grace_s: float | None = None) -> None:
        """End the program, at once or with time to save; `poll` tells when it is gone."""
        self._asked_at = time.monotonic()
        if self._program is not None:
            self._program.stop(grace_s)

    def stacks(self, wait_s: float) -> str:
        """What all threads of the program are doing, told within `wait_s`; its log has it too."""
        self._asked_at = time.monotonic()
        return self._program.stacks(wait_s) if self._program is not None else ""

    def _end_when_alone(self) -> None:
        node = os.getppid()
        while time.monotonic() - self._asked_at < LEASE_S and os.getppid() == node:
            time.sleep(LOOK_S)
        os._exit(1)


def host_environment() -> dict[str, str]:
    """What this process was started with: Ray sets OMP_NUM_THREADS=1 and more after that."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if not name.startswith(NOT_FOR_PROGRAMS)}


def add(environment: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """A program's variables over those of its host; search paths are joined."""
    paths = {
        name: os.pathsep.join([environment[name], host[name]])
        for name in SEARCH_PATHS
        if environment.get(name) and host.get(name)
    }
    return {**host, **environment, **paths}
