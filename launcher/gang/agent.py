"""The actor of a process on a host: starts its program, and returns its output and events.

The program's process tree ends with the actor, whatever ends the actor. The actor exits when it
receives no call for `LEASE_S`, or when its Ray node is gone. A driver that vanishes thus leaves
nothing running, and a lost host does not keep running beside its replacement.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.core.events import PreemptionNoticeEvent
from launcher.gang.host_program import HostProgram
from launcher.host import preflight
from launcher.host.checkpoint_memory import CheckpointMemory
from launcher.host.loaded_code import LoadedCode
from launcher.host.offer import Offer
from launcher.host.oom_score import outlive_programs
from launcher.host.preemption_notice import Notices
from launcher.host.preflight import HostReport
from launcher.host.process import SEARCH_PATHS, HostProcess, OutputUpdate, TakenProcess
from launcher.host.process_tree import ReaperError
from launcher.host.profile import Trace, TracedFiles
from launcher.host.program_files import ProgramFile, ProgramFiles
from launcher.host.proxy_env import LISTS, reach_directly
from launcher.host.run_dir_mirror import CopiedFolder
from launcher.host.side_command import CommandUpdate, SideCommand
from trainer.contract.protocol.environment import (
    HOST_MEMORY,
    HOST_MEMORY_BYTES,
    PROCESS_ID,
    PROCESSES_PER_HOST,
    RUN_DIR,
)

LEASE_S = 60.0
POLL_INTERVAL_S = 0.1
NOT_FOR_PROGRAMS = ("RAY_", "SPT_NOENV")
"""What Ray sets for its workers; the second is of the library that names them in `ps`."""
READ_AT_START = re.compile("SLIPWAY_|JAX_COORDINATOR_|JAX_LOCAL_DEVICE_IDS|MEGASCALE_|TPU_")
"""Names of variables that a program reads when its attempt starts, not when the process does."""


class Agent:
    """The agent of a process. Ray calls it in several threads: `stop` must not wait for `poll`."""

    def __init__(self) -> None:
        self._program: HostProcess | None = None
        self._prepared: HostProcess | None = None
        """A standby program for the next start."""
        self._memory: CheckpointMemory | None = None
        """In-memory checkpoints, once a program keeps some."""
        self._started: HostProgram | None = None
        """What `start` started last."""
        self._commands: dict[str, SideCommand] = {}
        """Commands beside the program, by the names that their callers chose."""
        self._cancelled: set[str] = set()
        """Commands that their callers have ended."""
        self._trace: Trace | None = None
        self._copied: CopiedFolder | None = None
        self._files: ProgramFiles | None = None
        """Compiled programs in the cache folder of the program."""
        self._started_at = 0.0
        """When `start` started the program, in seconds since the epoch."""
        self._asked_at = time.monotonic()
        self._code = LoadedCode()
        outlive_programs()
        self._notices = Notices()
        threading.Thread(target=self._end_when_alone, daemon=True).start()

    def address(self) -> str:
        """Returns the address at which the other hosts reach this host."""
        import ray.util

        self._asked_at = time.monotonic()
        return ray.util.get_node_ip_address()

    def is_current(self) -> bool:
        """Returns whether the code of this agent is still that on the host's disk."""
        self._asked_at = time.monotonic()
        return self._code.is_current()

    def listening_address(self, wanted: int | None) -> tuple[str, int]:
        """Returns the address and port on which the coordinator listens.

        The address is the one that the hosts use, and no other. It is "" (all of them) when that
        one is not this host's own, as behind NAT. The port is `wanted` when that is free, else
        any free port. Raises OSError when no port is free.
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

    def run_preflight(self, folder: str, platform: str) -> HostReport:
        """Returns the preflight report of this host for a run in `folder` on `platform`."""
        return preflight.run_preflight(self.address(), Path(folder), platform)

    def listen(self) -> int:
        """Listens on a port and returns it; other hosts test whether they can connect to it."""
        self._asked_at = time.monotonic()
        return preflight.listen(self.address())

    def unreachable(self, address: str, port: int) -> str:
        """Returns why this host cannot connect to another host, or "" when it can."""
        self._asked_at = time.monotonic()
        return preflight.unreachable(address, port)

    def file_exists(self, path: str) -> bool:
        """Returns whether a file of the launcher's machine exists on this host too."""
        self._asked_at = time.monotonic()
        return Path(path).exists()

    def receive(
        self, folder: str, files: Mapping[str, bytes], followed: list[str], made: list[str]
    ) -> str:
        """Copies the run's folder to this host before a start. Returns the error, or ""."""
        self._asked_at = time.monotonic()
        try:
            if self._copied is not None:
                self._copied.close()
            self._copied = CopiedFolder(Path(folder), files, followed, made)
        except OSError as error:
            return f"{folder} cannot be written: {error.strerror}"
        return ""

    def written(self) -> dict[str, bytes]:
        """Returns what was added to that copy's files since the last call; see CopiedFolder."""
        self._asked_at = time.monotonic()
        return self._copied.written() if self._copied is not None else {}

    def start(self, program: HostProgram) -> None:
        """Starts the host's program, in a standby process that waits for it if there is one."""
        self._asked_at = time.monotonic()
        self._started = program = self._with_memory(program)
        self._files, self._started_at = _files_of(program), time.time()
        if self._program is not None and self._program.is_waiting:
            self._program.begin(_whole(program.environment, program.hosts))
            return
        prepared, self._prepared = self._prepared, None
        self._program = (prepared and _begin(prepared, program)) or _start(program)

    def start_standby(self, program: HostProgram, offer: Offer | None) -> None:
        """Starts the host's program, which waits for `start`; `poll` reports what it does.

        Takes the one that `prepare` has made, or the program of the offer, when that waits in the
        same environment.
        """
        self._asked_at = time.monotonic()
        prepared, self._prepared = self._prepared, None
        self._program = (
            (prepared and _continue(prepared, program))
            or (offer and _take(offer, program))
            or _start(program, is_standby=True)
        )

    def prepare(self, program: HostProgram, _received: str = "") -> None:
        """Makes a standby program for the next `start`, which names the log of its output.

        A caller can pass the answer of `receive`, so that Ray calls this after it.
        """
        if self._prepared is not None:
            self._prepared.let_go()
        self._prepared = HostProcess(
            program.command,
            _whole(program.environment, program.hosts),
            None,
            Path(program.cwd),
            program.grace_s,
            is_standby=True,
        )

    def poll(self, wait_s: float) -> OutputUpdate:
        """Returns the program's output and events since the last call; waits up to `wait_s`."""
        self._asked_at = time.monotonic()
        assert self._program is not None
        batch = self._program.poll(wait_s)
        for text in self._notices.take():
            batch.events.append(PreemptionNoticeEvent(time=time.time(), message=text))
        return batch

    def programs_folder(self) -> str:
        """Returns the id of the program's cache folder, by which hosts see that they share one."""
        return self._files.folder_id if self._files else ""

    def used_programs(self) -> list[ProgramFile]:
        """Returns the files of compiled programs that this host has used since `start`."""
        return self._files.used_since(self._started_at) if self._files else []

    def program_part(self, name: str, begin: int) -> bytes:
        """Returns the next bytes of such a file; b"" at its end, and when it is gone."""
        return self._files.part(name, begin) if self._files else b""

    def missing_programs(self, program: HostProgram, names: list[str]) -> list[str]:
        """Returns those of the names of files that `program` would not find on this host."""
        self._files = _files_of(program)
        return self._files.missing(names)

    def take_program(self, file: ProgramFile, begin: int, part: bytes) -> str:
        """Takes a part of a missing file. Returns why the file is not written, or ""."""
        return self._files.take(file, begin, part) if self._files else ""

    def stop(self, grace_s: float | None = None) -> None:
        """Ends the program, with `grace_s` to save if given; `poll` reports when it is gone."""
        self._asked_at = time.monotonic()
        if self._program is not None:
            self._program.stop(grace_s)

    def stacks(self, wait_s: float) -> str:
        """Returns the stacks of all threads of the program within `wait_s`, and logs them."""
        self._asked_at = time.monotonic()
        return self._program.stacks(wait_s) if self._program is not None else ""

    def execute(self, name: str, command: Sequence[str]) -> str:
        """Starts a command in the environment of the program. Returns the error, or ""."""
        self._asked_at = time.monotonic()
        program = self._started
        if program is None:
            return "no program has been started on this host"
        whole = _whole(program.environment, program.hosts)
        try:
            self._commands[name] = started = SideCommand(command, whole, Path(program.cwd))
        except (ReaperError, OSError) as error:
            return str(error)
        if name in self._cancelled:  # by `end_command`, which Ray may have called first
            started.end()
        return ""

    def command_output(self, name: str, wait_s: float) -> CommandUpdate:
        """Returns the next output of a command; waits up to `wait_s`."""
        self._asked_at = time.monotonic()
        update = self._commands[name].poll(wait_s)
        if update.exit_code is not None:
            self._commands.pop(name, None)
        return update

    def end_command(self, name: str) -> None:
        """Ends a command and all that it has started, now or as soon as it has begun."""
        self._asked_at = time.monotonic()
        self._cancelled.add(name)
        if started := self._commands.pop(name, None):
            started.end()

    def trace(self, steps: int) -> str:
        """Asks the program to trace its next steps. Returns the error, or ""."""
        self._asked_at = time.monotonic()
        if self._program is None or self._started is None:
            return "no program has been started on this host"
        variables = self._started.environment
        per_host = int(variables.get(PROCESSES_PER_HOST, 1))
        self._trace = Trace(Path(variables[RUN_DIR]), int(variables[PROCESS_ID]), per_host)
        return self._trace.begin(self._program, steps)

    def traced(self, wait_s: float) -> TracedFiles:
        """Returns the files of the trace, once it is complete; waits up to `wait_s` for it."""
        self._asked_at = time.monotonic()
        files = self._trace.files(wait_s) if self._trace else []
        return TracedFiles(files, is_apart=self._copied is not None)

    def trace_part(self, path: str, begin: int) -> bytes:
        """Returns the next bytes of a file of the trace; b"" at its end."""
        self._asked_at = time.monotonic()
        return self._trace.part(path, begin) if self._trace else b""

    def cancel_trace(self) -> None:
        """Withdraws the request for a trace, unless it has begun."""
        self._asked_at = time.monotonic()
        if self._trace:
            self._trace.cancel()

    def _with_memory(self, program: HostProgram) -> HostProgram:
        """Adds the address of this host's memory for a program that keeps in-memory checkpoints."""
        size = program.environment.get(HOST_MEMORY_BYTES)
        if size is None:
            return program
        if self._memory is None:
            self._memory = CheckpointMemory(preflight.own_address(self.address()), int(size))
        self._memory.set_limit(int(size))
        place = {HOST_MEMORY: str(self._memory.address)}
        return replace(program, environment={**program.environment, **place})

    def _end_when_alone(self) -> None:
        node = os.getppid()
        while time.monotonic() - self._asked_at < LEASE_S and os.getppid() == node:
            time.sleep(POLL_INTERVAL_S)
        os._exit(1)


def _take(offer: Offer, program: HostProgram) -> HostProcess | None:
    """Takes over the program of an offer.

    Returns None when the program is another one or has ended.
    """
    whole = _whole(program.environment, program.hosts)
    if list(offer.command) != list(program.command) or not alike(offer.environment, whole):
        return None
    try:
        taken = TakenProcess(offer)
    except OSError:
        return None
    taken.write_output(Path(program.log))
    return taken


def _continue(standby: HostProcess, program: HostProgram) -> HostProcess | None:
    """Returns a standby program that has started as `program`, with its output in the log.

    Returns None when it has ended, or is another one; then it ends.
    """
    whole = _whole(program.environment, program.hosts)
    is_it = standby.command == program.command and alike(standby.environment, whole)
    if standby.has_ended() or not is_it:
        standby.let_go()
        return None
    standby.write_output(Path(program.log))
    return standby


def _begin(standby: HostProcess, program: HostProgram) -> HostProcess | None:
    """Lets a standby program start as `program`.

    Returns None when it has ended, or waits in another environment; then it ends.
    """
    whole = _whole(program.environment, program.hosts)
    if not standby.is_ready() or not alike(standby.environment, whole):
        standby.let_go()
        return None
    standby.write_output(Path(program.log))
    standby.begin(whole)
    return standby


def _start(program: HostProgram, *, is_standby: bool = False) -> HostProcess:
    whole = _whole(program.environment, program.hosts)
    log, cwd = Path(program.log), Path(program.cwd)
    return HostProcess(program.command, whole, log, cwd, program.grace_s, is_standby)


def _files_of(program: HostProgram) -> ProgramFiles:
    return ProgramFiles(_whole(program.environment, program.hosts))


def _whole(environment: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Returns all variables of the program: its own, and those of the host."""
    return reach_directly(hosts, add(environment, host_environment()))


def alike(early: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Returns whether a program that started with `early` can go on with `now`.

    Only variables that it reads at its start may differ.
    """
    names = early.keys() | now.keys()
    different = {name for name in names if early.get(name) != now.get(name)}
    return all(name in LISTS or READ_AT_START.match(name) for name in different)


def host_environment() -> dict[str, str]:
    """Returns this process's initial environment: Ray later sets OMP_NUM_THREADS=1 and more."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs if not name.startswith(NOT_FOR_PROGRAMS)}


def add(environment: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """Returns a program's variables merged over those of its host; search paths are joined."""
    paths = {
        name: os.pathsep.join([environment[name], host[name]])
        for name in SEARCH_PATHS
        if environment.get(name) and host.get(name)
    }
    return {**host, **environment, **paths}
