"""Runs commands, and ends the whole tree of what they started when the owner is gone.

A program of its own, `python -I -S reaper.py`, started by process_tree.py; standard library
only, so that it is up in some 40 ms. Standard input is the lifeline: the owner holds its write end
and sends requests on it, one JSON object a line; end of file means that the owner died, in any way
(`kill -9` included). A parent-death signal would not do: it fires when the *thread* that made the
process ends, and the owner may be a thread of a Ray actor.

It is two processes, which watch each other, so that `kill -9` of either leaves nothing behind. The
reaper is the parent of the commands and does all the work. The guard is the reaper's parent: what a
reaper that is killed leaves becomes a child of the guard, which ends it and cleans up. When the
guard is killed, the reaper gets SIGTERM. Only the guard's process id is known outside.

A folder of the first request holds `owner.json` with the cleanup commands, locked while one of the
two lives: launcher/providers/ray/abandoned.py finds by it what both leave when both are killed.

Requests: {"folders": [...], "setup": [[...]], "cleanup": [[...]], "grace_s": s}, first and once;
{"start": {"name", "argv", "env", "cwd", "log", "pass_fds", "rotate_bytes", "oom_score"}};
{"log": path}, of a command that started with the log null, whose output has waited in its pipe;
{"signal": n}, to the commands; {"end": {"grace_s": s}}: an orderly stop, see `_ask_to_end`;
{"detach": true}: live on without an owner. Answers, on standard output: those of
reaper_messages.py, {"message": kind, field: value, ...}; log_writer.py adds its own.
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

OWNER_FILE = "owner.json"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 36, 0x59616D61
"""Options of prctl, from linux/prctl.h."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDING_TIMEOUT_S = 30.0
RELAY_TIMEOUT_S = 2.0
"""Seconds for the rest of a dead program's output; a relay that the disk delays ends by itself."""
RELAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log_writer.py")
PIPE_BYTES = 1 << 20
READ_BYTES = 65_536
POLL_INTERVAL_S = 1.0
LIBC = ctypes.CDLL(None)


class Reaper:
    """The children, the folders and everything else that must end with this process.

    Created in the guard, whose copy has the same folders and cleanup commands as the reaper's.
    """

    def __init__(self) -> None:
        self.guard = os.getpid()
        self.names: dict[int, str] = {}
        self.relays: dict[int, tuple[list[str], int] | None] = {}
        """Process id -> its command and the pipe that it reads; None: another reaper's relay."""
        self.unread: list[tuple[int, int]] = []
        """The output pipe of a command without a log, and the size at which to rotate its log."""
        self.requests = b""
        """Bytes of requests that have been read but not handled."""
        self.owner_files: list[int] = []
        """Descriptors of the locked files in the folders."""
        self.folders: list[str] = []
        self.cleanup: list[list[str]] = []
        self.grace_s = 0.0
        self.detached = False
        self.asked_to_end = False
        self.out_of_time = float("inf")

    def set_up(self) -> bool:
        """Handles the first request. Returns False when there is none, or when it failed."""
        while b"\n" not in self.requests:
            chunk = os.read(0, READ_BYTES)
            if not chunk:
                return False
            self.requests += chunk
        first, _, self.requests = self.requests.partition(b"\n")
        try:
            self._set_up(**json.loads(first))
        except (OSError, subprocess.SubprocessError) as error:
            _send("failed", reason=f"{error}")
            self._clean_up()
            return False
        return True

    def run(self) -> None:
        """Serves until the owner, a signal or, detached, the last command ends it; cleans up."""
        try:
            self._serve()
        except Exception as error:
            _send("failed", reason=f"{type(error).__name__}: {error}")
            raise
        finally:
            if self._is_alone():
                _send("killed", process="guard")
            self._end_all()

    def replace(self) -> None:
        """Ends and cleans up what a killed or failed reaper left; called in its guard."""
        _send("killed", process="reaper")
        self.relays = dict.fromkeys(filter(_is_relay, _children(os.getpid())))
        self.grace_s = 0.0
        self._end_all()

    def _end_all(self) -> None:
        self._end_tree()
        self._wait_for_relays()
        self._clean_up()

    def _serve(self) -> None:
        wakeup = _wake_on_signals(self._on_signal)
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        self.asked_to_end = self.asked_to_end or self._is_alone()
        waiting, rest = [0, wakeup], self.requests
        while not (self.asked_to_end or (self.detached and not self.names)):
            left_s = max(0.0, self.out_of_time - time.monotonic())
            readable, _, _ = select.select(waiting, [], [], min(POLL_INTERVAL_S, left_s))
            if wakeup in readable:
                os.read(wakeup, READ_BYTES)
            if 0 in readable:
                chunk = os.read(0, READ_BYTES)
                if not chunk:
                    if not self.detached:
                        return
                    waiting.remove(0)
                rest += chunk
            *lines, rest = rest.split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
            self._collect_exits()
            if time.monotonic() >= self.out_of_time:
                self.grace_s = 0.0  # the commands have had their grace
                return

    def _is_alone(self) -> bool:
        """Returns whether the guard is gone."""
        return os.getppid() != self.guard

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self.asked_to_end = True

    def _handle(self, request: dict) -> None:
        try:
            if "start" in request:
                self._start(**request["start"])
            elif "log" in request:
                self._write_output(request["log"])
            elif "signal" in request:
                signal_all(list(self.names), request["signal"])
            elif "end" in request:
                self._ask_to_end(**request["end"])
            else:
                self.detached = True
        except (OSError, subprocess.SubprocessError) as error:
            _send("failed", reason=f"{error}")
            self.asked_to_end = True

    def _set_up(
        self,
        folders: list[str],
        setup: list[list[str]],
        cleanup: list[list[str]],
        grace_s: float,
    ) -> None:
        """Records what must be deleted before it is created, so that nothing can leak."""
        self.folders, self.cleanup, self.grace_s = folders, cleanup, grace_s
        for folder in folders:
            os.mkdir(folder, 0o700)
            self._lock(folder)
        for command in setup:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise OSError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")

    def _lock(self, folder: str) -> None:
        """Creates the owner file, renamed once locked: without a lock, it has no owner any more."""
        path = os.path.join(folder, OWNER_FILE)
        file = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)  # a file system without locks: whether the owner lives cannot be known
            return
        os.write(file, json.dumps(self.cleanup).encode())
        os.rename(f"{path}.new", path)
        self.owner_files.append(file)

    def _start(
        self,
        name: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        log: str | None,
        pass_fds: list[int],
        rotate_bytes: int | None,
        oom_score: int | None,
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
                preexec_fn=die_with_parent(os.getpid(), oom_score),
            )
        finally:
            for number in (output, *pass_fds):
                os.close(number)
        child.returncode = 0  # waited for below, by process id: subprocess must not
        self.names[child.pid] = name
        _send("started", name=name, pid=child.pid)

    def _open_output(self, log: str | None, rotate_bytes: int | None) -> int:
        if rotate_bytes is None:
            assert log is not None
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            return os.open(log, flags, 0o644)
        reading, writing = os.pipe()
        try:
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # over the user's quota: the kernel's 64 KiB will do
        self.unread.append((reading, rotate_bytes))
        if log is not None:
            self._write_output(log)
        return writing

    def _write_output(self, log: str) -> None:
        """Writes the output that no relay reads yet, and all that follows, to a log."""
        reading, rotate_bytes = self.unread.pop()
        command = [sys.executable, "-I", "-S", RELAY, os.path.abspath(log), str(rotate_bytes)]
        self._start_relay(command, reading)

    def _start_relay(self, command: list[str], reading: int) -> None:
        relay = subprocess.Popen(command, stdin=reading, stderr=subprocess.DEVNULL)
        relay.returncode = 0  # as in `_start`
        self.relays[relay.pid] = command, reading

    def _ask_to_end(self, grace_s: float) -> None:
        """Sends SIGTERM to the commands alone: an orderly end may need what they started.

        The rest of the tree ends when the owner closes the lifeline, or after the grace.
        """
        self.out_of_time = time.monotonic() + grace_s
        signal_all(list(self.names), signal.SIGTERM)

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
                _send("exited", name=self.names.pop(pid), status=status, monotonic_s=now)
            elif pid in self.relays:
                relay = self.relays.pop(pid)
                if status and relay:
                    self._start_relay(*relay)

    def _end_tree(self) -> None:
        """Sends SIGTERM and, after a short grace, SIGKILL until only relays are left in /proc."""
        now = time.monotonic()
        killing, given_up = now + self.grace_s, now + self.grace_s + ENDING_TIMEOUT_S
        if self.grace_s:
            signal_all(self._tree(), signal.SIGTERM)
        while time.monotonic() < given_up:
            self._collect_exits()
            alive = self._tree()
            if not alive:
                return
            if time.monotonic() >= killing:
                signal_all(alive, signal.SIGKILL)
            time.sleep(0.01)

    def _tree(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in self.relays]

    def _wait_for_relays(self) -> None:
        """Waits for the relays to read to the end: with the tree, all writers are gone."""
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
    """Returns the process ids below `root`, by the parents that /proc names."""
    children = _processes_by_parent()
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _children(parent: int) -> list[int]:
    return _processes_by_parent().get(parent, [])


def _processes_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # ended meanwhile
            children.setdefault(parent, []).append(int(entry))
    return children


def _is_relay(child: int) -> bool:
    """Returns whether a child, which is in /proc until it is waited for, writes a log."""
    with open(f"/proc/{child}/cmdline", "rb") as file:
        return RELAY.encode() in file.read().split(b"\0")


def _prctl(option: int, value: int) -> None:
    """Sets an attribute of this process, see prctl(2)."""
    LIBC.prctl(option, ctypes.c_ulong(value))


def signal_all(pids: list[int], number: int) -> None:
    """Sends a signal to processes, of which some may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def die_with_parent(parent: int, oom_score: int | None = None):
    """Returns a function for the child before its exec; it makes the child end with `parent`.

    This is exact, because the reaper has only one thread. `oom_score`: the kernel ends processes
    with a higher score first when memory runs out.
    """

    def prepare() -> None:
        if oom_score is not None:
            try:
                with open("/proc/self/oom_score_adj", "w") as file:
                    file.write(str(oom_score))
            except OSError:
                pass  # /proc is read-only: the kernel then chooses by size alone
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # Where Yama restricts ptrace, this lets py-spy read the process.
        _prctl(PR_SET_PTRACER, -1)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _wake_on_signals(handler) -> int:
    """Returns a descriptor that becomes readable on every signal: `select` misses none."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *ENDING_SIGNALS):
        signal.signal(number, handler)
    return reading


def _send(kind: str, **values: object) -> None:
    """Sends an answer, see reaper_messages.py."""
    try:
        os.write(1, json.dumps({"message": kind, **values}).encode() + b"\n")
    except OSError:
        pass  # the owner is gone: the lifeline reports that too


def guard(reaper: Reaper, pid: int) -> None:
    """Waits for the reaper, and forwards ending signals to it; does its work if it dies."""

    def pass_on(_number: int, _frame: object) -> None:
        os.kill(pid, signal.SIGTERM)

    for number in ENDING_SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    _hold_only(reaper.owner_files)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # its id may soon belong to another process
    _, status = os.waitpid(pid, 0)
    if status:
        reaper.replace()


def _hold_only(files: list[int]) -> None:
    """Closes all but `files`: the reaper has the owner's requests and the commands' descriptors."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in files:
            try:
                os.close(int(entry))
            except OSError:
                pass  # that of the listing itself


def main() -> None:
    """Leaves the owner's session and its children, so that only the lifeline ends this process."""
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # until both have their handlers
    reaper = Reaper()
    if not reaper.set_up():
        return
    pid = os.fork()
    if pid == 0:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        reaper.run()
    else:
        _send("ready", pid=os.getpid())
        guard(reaper, pid)


if __name__ == "__main__":
    sys.exit(main())
