"""Simulated clusters that stay up between runs: `launch up`, `launch down`.

A warm cluster is its reaper, which has no owner. A file in the user's state folder records how to
reach the cluster, and the reaper's process id and start time. The start time distinguishes the
reaper from another process with the same id.
"""

import hashlib
import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from launcher.cluster.local import Local
from launcher.core.errors import HostError
from launcher.core.files import (
    is_locked,
    lock,
    make_state_folder,
    read_object,
    replace_file,
    state_folder,
)
from launcher.core.messages import from_wire, to_wire
from launcher.host.process_tree import start_time
from launcher.providers.ray.host_cluster import OwnedCluster, WarmCluster
from launcher.runs.known_process import KnownProcess
from trainer.contract.planning.plan import World

ENDING_TIMEOUT_S = 60.0
LOCKED_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class WarmSettings:
    """The settings that a run and the warm cluster it uses must have in common."""

    world: World
    local: Local


@dataclass(frozen=True, kw_only=True)
class _Reaper:
    """The part of a record that is enough to end the cluster, in every version of Slipway."""

    pid: int
    start_time: int | None
    """When the process started, in ticks since boot."""
    source: str = ""
    """Identifies the cluster, see `cluster_key`."""


@dataclass(frozen=True, kw_only=True)
class _Record(_Reaper):
    """The record of a warm cluster."""

    settings: WarmSettings
    address: str
    driver_ip: str
    token_path: Path
    folder: Path | None

    @property
    def hosts(self) -> WarmCluster:
        return WarmCluster(self.address, self.driver_ip, self.token_path, folder=self.folder)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Locks the cluster of that name: one command at a time inspects, starts or ends it.

    Raises HostError when another command still holds the lock after LOCKED_TIMEOUT_S.
    """
    make_state_folder("clusters")
    path = _path(name, "lock")
    deadline = time.monotonic() + LOCKED_TIMEOUT_S
    with path.open("w") as file:
        while not lock(file):
            if time.monotonic() > deadline:
                raise HostError(
                    f"another `launch up` or `launch down` of {name} has not ended after "
                    f"{LOCKED_TIMEOUT_S:.0f} s"
                )
        yield


def keep(name: str, settings: WarmSettings, hosts: OwnedCluster, source: str = "") -> WarmCluster:
    """Keeps the cluster up under a name after this process ends.

    `source` identifies the cluster, see `cluster_key`.
    """
    reaped, path = hosts.reaped, _path(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = _Record(
        pid=reaped.pid,
        start_time=start_time(reaped.pid),
        source=source,
        settings=settings,
        address=hosts.address,
        driver_ip=hosts.driver_ip,
        token_path=hosts.token_path,
        folder=hosts.folder,
    )
    replace_file(path, json.dumps(to_wire(record)))
    reaped.detach()
    return record.hosts


def find(name: str, settings: WarmSettings) -> WarmCluster | None:
    """Returns the warm cluster of that name. Returns None when none is up.

    Raises HostError when its hosts differ from the requested ones, or when another version of
    Slipway has started it.
    """
    if _reaper_of(name) is None:
        return None
    path = _path(name)
    remedy = f"End that cluster with `launch down {name}`"
    record = from_wire(_Record, read_object(path), str(path), HostError, remedy)
    if record.settings != settings:
        raise HostError(
            f"the warm cluster {name} has other hosts than this run needs. Use the options that it "
            f"was started with, or end it with `launch down {name}`"
        )
    return record.hosts


def is_up(name: str) -> bool:
    """Returns whether the warm cluster of that name is up."""
    return _reaper_of(name) is not None


def is_of(name: str, source: str) -> bool:
    """Returns whether the warm cluster of that name is up and was started for `source`."""
    reaper = _reaper_of(name)
    return reaper is not None and reaper.source == source


def use(name: str, run: Path) -> IO[str]:
    """Records that a run uses the warm cluster, for as long as the returned file is open."""
    users = _users(name)
    users.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = (users / hashlib.sha256(str(run).encode()).hexdigest()[:16]).open("w")
    lock(file)
    file.write(str(run))
    file.flush()
    return file


def users(name: str) -> list[Path]:
    """Returns the folders of the runs that use the warm cluster now."""
    held = [entry for entry in sorted(_users(name).glob("*")) if is_locked(entry)]
    return [Path(entry.read_text(encoding="utf-8")) for entry in held]


def end(name: str) -> bool:
    """Ends the warm cluster of that name and waits until it is gone.

    Returns False when none is up. Raises HostError when the cluster does not end.
    """
    reaper = _reaper_of(name)
    if reaper is None:
        return False
    if process := KnownProcess.find(reaper.pid, reaper.start_time):
        with process:
            process.send(signal.SIGTERM)
            if not process.ends_within(ENDING_TIMEOUT_S):
                raise HostError(f"cluster {name} did not end; its reaper is process {process.pid}")
    _path(name).unlink(missing_ok=True)
    shutil.rmtree(_users(name), ignore_errors=True)
    return True


def _reaper_of(name: str) -> _Reaper | None:
    """Returns the reaper of a cluster that is up; removes the record of one that has ended."""
    path = _path(name)
    if not path.exists():
        return None
    try:
        reaper = from_wire(_Reaper, read_object(path), str(path), HostError)
    except HostError:
        reaper = None
    if reaper is None or start_time(reaper.pid) != reaper.start_time:
        path.unlink(missing_ok=True)
        return None
    return reaper


def _users(name: str) -> Path:
    return _path(name, "runs")


def _path(name: str, kind: str = "json") -> Path:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return state_folder() / "clusters" / f"{plain}.{kind}"
