"""A host's report before a program starts; `launcher/gang/preflight.py` evaluates it."""

import os
import pwd
import re
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CHIPS = {"tpu": r"accel\d+|vfio/\d+", "gpu": r"nvidia\d+"}
"""Patterns of the files in /dev by which programs reach accelerators, one file each."""
LISTEN_S, CONNECT_S = 30.0, 2.0
SHARED_MEMORY = Path("/dev/shm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Holder:
    """A process that has an accelerator open."""

    pid: int
    owner: str
    command: str
    device: str


@dataclass(frozen=True)
class HostReport:
    """The preflight report of a host. Sizes are free bytes."""

    address: str
    """The address at which other hosts reach this host."""
    machine: str
    """An id that is equal for all hosts under one kernel."""
    time_s: float
    open_files: int
    """Number of open files that a process may have."""
    memory_bytes: int
    shared_memory_bytes: int | None
    """Free bytes of /dev/shm; None without it."""
    disk_bytes: int
    """Free disk space where the run's folder is, or will be."""
    unwritable: str
    """Why the run's folder cannot be written; "" when it can."""
    chips: int
    holders: list[Holder]


def run_preflight(
    address: str, folder: Path, platform: str, dev: Path = Path("/dev")
) -> HostReport:
    """Inspects this host; `platform` is that of the accelerators it should have."""
    chips, count = _chips(platform, dev)
    existing = _nearest(folder)
    return HostReport(
        address=address,
        machine=BOOT_ID.read_text().strip() if BOOT_ID.exists() else socket.gethostname(),
        time_s=time.time(),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        memory_bytes=_available_memory(),
        shared_memory_bytes=_free_bytes(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None,
        disk_bytes=_free_bytes(existing),
        unwritable=_unwritable(existing),
        chips=count,
        holders=list(_holders(chips)),
    )


def own_address(address: str) -> str:
    """Returns `address` when this host can listen on it, else "": all of its addresses."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return ""
    return address


def listen(address: str, seconds: float = LISTEN_S) -> int:
    """Accepts connections to `address` until none comes for `seconds`; returns the port."""
    server = socket.create_server((own_address(address), 0), backlog=4096)
    server.settimeout(seconds)

    def accept() -> None:
        with server, suppress(OSError):
            while True:
                server.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


def unreachable(address: str, port: int) -> str:
    """Returns why this host cannot connect to another host, or "" when it can."""
    try:
        socket.create_connection((address, port), CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _nearest(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def _unwritable(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"slipway")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _available_memory() -> int:
    """Returns the available bytes by the kernel's own estimate."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def _chips(platform: str, dev: Path) -> tuple[list[Path], int]:
    """Returns the files and the number of chips; for GPUs, of those that this process may see.

    The files of GPUs that are named by UUID are unknown.
    """
    pattern = CHIPS.get(platform)
    if pattern is None or not dev.is_dir():
        return [], 0
    files = [dev / match[0] for name in _names(dev) if (match := re.fullmatch(pattern, name))]
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if platform == "gpu" and allowed is not None:
        ids = [part.strip() for part in allowed.split(",") if part.strip() not in ("", "-1")]
        seen = [file for file in files if file.name in {f"nvidia{one}" for one in ids}]
        by_number = all(one.isdecimal() for one in ids)
        return seen, len(seen) if by_number else min(len(ids), len(files))
    return files, len(files)


def _names(dev: Path) -> list[str]:
    groups = [f"vfio/{path.name}" for path in sorted(dev.glob("vfio/*"))]
    return [*sorted(path.name for path in dev.iterdir()), *groups]


def _holders(chips: Sequence[Path]) -> Iterator[Holder]:
    """Yields every other process that has one of the chips open, once each."""
    devices = {str(chip) for chip in chips}
    for folder in Path("/proc").glob("[0-9]*") if devices else ():
        if int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # it has ended, or this user may not inspect it
            opened = {str(link.readlink()) for link in (folder / "fd").iterdir()} & devices
            if opened:
                yield Holder(int(folder.name), _owner(folder), _command(folder), min(opened))


def _owner(folder: Path) -> str:
    uid = folder.stat().st_uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _command(folder: Path) -> str:
    return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
