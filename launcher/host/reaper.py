"""Runs commands, and ends the whole tree of what they started when the owner is gone.

A program of its own, `python -I -S reaper.py`, started by processes.py; standard library
only, so that it is up in some 40 ms. Standard input is the lifeline: the owner holds its write end
and sends requests on it, one JSON object a line; end of file means that the owner died, by whatever
way (`kill -9` included). A parent-death signal would not do: it fires when the *thread* that made
the process ends, and the owner may be a thread of a Ray actor.

Requests: {"folders": [...], "setup": [[...]], "cleanup": [[...]], "grace_s": s}, first and once;
{"start": {"name", "argv", "env", "cwd", "log", "pass_fds", "rotate_bytes"}}; {"signal": n}, to the
commands; {"end": {"grace_s": s}}: an orderly stop, see `_ask_to_end`; {"detach": true}: live on
without an owner. Answers, on standard output: {"ready": pid}, {"failed": why}, {"started": name,
"pid": n}, {"exited": name, "status": a wait status, "monotonic_s": by CLOCK_MONOTONIC, the same
for all processes of a host}, and those of `launcher/host/relay.py`.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 36, 0x59616D61
ENDING_TIMEOUT_S = 30.0
RELAY_TIMEOUT_S = 2.0
"""For the rest of a dead program's output; a relay that a disk holds longer ends by itself."""
RELAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "relay.py")
PIPE_BYTES = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)


class Reaper:
    """The children, the folders and what else must be gone when this process is."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.relays: dict[int, tuple[list[str], int]] = {}
        """Process id -> its command, and the pipe that it reads."""
        self.folders: list[str] = []
        self.cleanup: list[list[str]] = []
        self.grace_s = 0.0
        self.detached = False
        self.asked_to_end = False
        self.out_of_time = float("inf")

    def run(self) -> None:
        """Serve until the owner or a signal ends it, or, detached, the last command; clean up."""
        try:
            self._serve()
        except Exception as error:
            _tell(failed=f"{type(error).__name__}: {error}")
            raise
        finally:
            self._end_tree()
            self._wait_for_relays()
            self._clean_up()

    def _serve(self) -> None:
        wakeup = _wake_on_signals(self._on_signal)
        waiting, rest = [0, wakeup], b""
        while not (self.asked_to_end or (self.detached and not self.names)):
            wait_s = min(1.0, max(0.0, self.out_of_time - time.monotonic()))
            readable, _, _ = select.select(waiting, [], [], wait_s)
            if wakeup in readable:
                os.read(wakeup, 4096)
            if 0 in readable:
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    if not self.detached:
                        return
                    waiting.remove(0)
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
            self._collect_exits()
            if time.monotonic() >= self.out_of_time:
                self.grace_s = 0.0  # they have had theirs
                return

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self.asked_to_end = True

    def _handle(self, request: dict) -> None:
        try:
            if "start" in request:
                self._start(**request["start"])
            elif "signal" in request:
                _signal_all(list(self.names), request["signal"])
            elif "end" in request:
                self._ask_to_end(**request["end"])
            elif "detach" in request:
                self.detached = True
            else:
                self._set_up(**request)
        except (OSError, subprocess.SubprocessError) as error:
            _tell(failed=f"{error}")
            self.asked_to_end = True

    def _set_up(
        self,
        folders: list[str],
        setup: list[list[str]],
        cleanup: list[list[str]],
        grace_s: float,
    ) -> None:
        """What must be deleted is known here before it is made: no moment in which it can leak."""
        self.folders, self.cleanup, self.grace_s = folders, cleanup, grace_s
        for folder in folders:
            os.mkdir(folder, 0o700)
        for command in setup:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise OSError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
        _tell(ready=os.getpid())

    def _start(
        self,
        name: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        log: str,
        pass_fds: list[int],
        rotate_bytes: int | None,
    ) -> None:
        output = self._open_output(log, rotate_bytes)
        try:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
        finally:
            for number in (output, *pass_fds):
                os.close(number)
        child.returncode = 0  # waited for below, by process id: subprocess must not
        self.names[child.pid] = name
        _tell(started=name, pid=child.pid)

    def _open_output(self, log: str, rotate_bytes: int | None) -> int:
        if rotate_bytes is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            return os.open(log, flags, 0o644)
        reading, writing = os.pipe()
        try:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # over the user's quota: the kernel's 64 KiB will do
        command = [sys.executable, "-I", "-S", RELAY, os.path.abspath(log), str(rotate_bytes)]
        self._start_relay(command, reading)
        return writing

    def _start_relay(self, command: list[str], reading: int) -> None:
        relay = subprocess.Popen(command, stdin=reading, stderr=subprocess.DEVNULL)
        relay.returncode = 0  # as in `_start`
        self.relays[relay.pid] = command, reading

    def _ask_to_end(self, grace_s: float) -> None:
        """SIGTERM to the commands alone: what they started may be needed to end in order.

        What is left of the tree follows when the owner closes the lifeline, or after the grace.
        """
        self.out_of_time = time.monotonic() + grace_s
        _signal_all(list(self.names), signal.SIGTERM)

    def _collect_exits(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.names:
                now = time.monotonic()
                _tell(exited=self.names.pop(pid), status=status, monotonic_s=now)
            elif pid in self.relays:
                relay = self.relays.pop(pid)
                if status:
                    self._start_relay(*relay)

    def _end_tree(self) -> None:
        """SIGTERM, a short grace, then SIGKILL until /proc shows no descendant but the relays."""
        now = time.monotonic()
        killing, given_up = now + self.grace_s, now + self.grace_s + ENDING_TIMEOUT_S
        if self.grace_s:
            _signal_all(self._tree(), signal.SIGTERM)
        while time.monotonic() < given_up:
            self._collect_exits()
            alive = self._tree()
            if not alive:
                return
            if time.monotonic() >= killing:
                _signal_all(alive, signal.SIGKILL)
            time.sleep(0.01)

    def _tree(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in self.relays]

    def _wait_for_relays(self) -> None:
        """With the tree, all writers are gone: what they wrote is read to its end now."""
        given_up = time.monotonic() + RELAY_TIMEOUT_S
        while self.relays and time.monotonic() < given_up:
            self._collect_exits()
            time.sleep(0.005)

    def _clean_up(self) -> None:
        for command in self.cleanup:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        if self.folders:
            import shutil  # late: 5 ms of the start

            for folder in self.folders:
                shutil.rmtree(folder, ignore_errors=True)


def descendants(root: int) -> list[int]:
    """Process ids below `root`, by the parents that /proc names."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # ended meanwhile
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def die_with_parent(parent: int):
    """For the child, before its exec: exact, because the reaper has one thread only."""

    def prepare() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Where Yama guards processes from their user, py-spy may read this one all the same.
        LIBC.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _wake_on_signals(handler) -> int:
    """A descriptor that becomes readable on every signal: `select` misses none."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)
    return reading


def _tell(**answer: object) -> None:
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # no owner any more: the lifeline says so too


def main() -> None:
    """Leave the owner's session and its children: nobody but the lifeline ends this process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    Reaper().run()


if __name__ == "__main__":
    sys.exit(main())
