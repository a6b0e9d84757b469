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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from launcher.cluster.providers import Local
from launcher.core.errors import HostError
from launcher.core.files import is_locked, lock, make_state_folder, replace_file, state_folder
from launcher.host.process_tree import start_time
from launcher.providers.ray.host_cluster import OwnedCluster, WarmCluster
from launcher.runs.known_process import KnownProcess
from trainer.contract.planning.plan import World

ENDING_TIMEOUT_S = 60.0
LOCKED_TIMEOUT_S = 300.0


def settings_of(world: World, settings: Local) -> Any:
    """Returns the settings that a run and the warm cluster it uses must have in common."""
    return {"world": world.model_dump(mode="json"), "local": json.loads(settings.model_dump_json())}


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


def keep(name: str, settings: Any, hosts: OwnedCluster, source: str = "") -> WarmCluster:
    """Keeps the cluster up under a name after this process ends.

    `source` identifies the cluster, see `cluster_key`.
    """
    reaped, path = hosts.reaped, _path(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = {
        "pid": reaped.pid,
        "start_time": start_time(reaped.pid),
        "settings": settings,
        "address": hosts.address,
        "driver_ip": hosts.driver_ip,
        "token_path": str(hosts.token_path),
        "folder": str(hosts.folder),
        "source": source,
    }
    replace_file(path, json.dumps(record))
    reaped.detach()
    return _hosts(record)


def find(name: str, settings: Any) -> WarmCluster | None:
    """Returns the warm cluster of that name. Returns None when none is up.

    Raises HostError when its hosts differ from the requested ones.
    """
    record = _read(name)
    if record is None:
        return None
    if record["settings"] != settings:
        raise HostError(
            f"the warm cluster {name} has other hosts than this run needs. Use the options that it "
            f"was started with, or end it with `launch down {name}`"
        )
    return _hosts(record)


def is_up(name: str) -> bool:
    """Returns whether the warm cluster of that name is up."""
    return _read(name) is not None


def is_of(name: str, source: str) -> bool:
    """Returns whether the warm cluster of that name is up and was started for `source`."""
    record = _read(name)
    return record is not None and record.get("source") == source


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
    record = _read(name)
    if record is None:
        return False
    if reaper := KnownProcess.find(record["pid"], record["start_time"]):
        with reaper:
            reaper.send(signal.SIGTERM)
            if not reaper.ends_within(ENDING_TIMEOUT_S):
                raise HostError(f"cluster {name} did not end; its reaper is process {reaper.pid}")
    _path(name).unlink(missing_ok=True)
    shutil.rmtree(_users(name), ignore_errors=True)
    return True


def _read(name: str) -> dict[str, Any] | None:
    """Returns the record of a cluster that is up; removes the record of one that has ended."""
    path = _path(name)
    try:
        record = json.loads(path.read_text())
        alive = start_time(record["pid"]) == record["start_time"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        alive = False
    if not alive:
        path.unlink(missing_ok=True)
        return None
    return record


def _hosts(record: Mapping[str, Any]) -> WarmCluster:
    token_path, folder = Path(record["token_path"]), Path(record["folder"])
    return WarmCluster(record["address"], record["driver_ip"], token_path, folder=folder)


def _users(name: str) -> Path:
    return _path(name, "runs")


def _path(name: str, kind: str = "json") -> Path:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return state_folder() / "clusters" / f"{plain}.{kind}"
