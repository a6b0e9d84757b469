"""Simulated clusters that stay up between runs: `launch up`, `launch down`.

A warm cluster is its reaper, which has no owner. A file in the user's state folder says which
process that is (by id and start time, so that another process of the same id is never taken for
it) and how to reach the cluster.
"""

import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.cluster import Local
from launcher.files import replace_file, state_folder
from launcher.host.processes import start_time
from launcher.known_process import KnownProcess
from launcher.providers.errors import ProviderError
from launcher.providers.hosts import Hosts
from trainer.spec.plan import World

ENDING_TIMEOUT_S = 60.0


def settings_of(world: World, settings: Local) -> Any:
    """What must be the same for a run to use a cluster that another command started."""
    return {"world": world.model_dump(mode="json"), "local": json.loads(settings.model_dump_json())}


def keep(name: str, settings: Any, hosts: Hosts) -> Hosts:
    """Let the cluster live on under a name; the hosts that are returned do not own it."""
    reaped = hosts.reaped
    assert reaped is not None
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record = {
        "pid": reaped.pid,
        "start_time": start_time(reaped.pid),
        "settings": settings,
        "address": hosts.address,
        "driver_ip": hosts.driver_ip,
        "token_path": str(hosts.token_path),
        "folder": str(hosts.folder),
    }
    replace_file(path, json.dumps(record))
    reaped.detach()
    return _hosts(record)


def find(name: str, settings: Any) -> Hosts | None:
    """The warm cluster of that name, if it lives; None: there is none.

    Raises ProviderError where it has other hosts than the ones asked for.
    """
    record = _read(name)
    if record is None:
        return None
    if record["settings"] != settings:
        raise ProviderError(
            f"the cluster {name} that is kept warm has other hosts than this run needs: use the "
            f"options that it was started with, or end it with `launch down {name}`"
        )
    return _hosts(record)


def end(name: str) -> bool:
    """End the warm cluster of that name and wait until it is gone; False: there is none.

    Raises ProviderError where it does not end.
    """
    record = _read(name)
    if record is None:
        return False
    if reaper := KnownProcess.find(record["pid"], record["start_time"]):
        with reaper:
            reaper.send(signal.SIGTERM)
            if not reaper.ends_within(ENDING_TIMEOUT_S):
                raise ProviderError(
                    f"cluster {name} did not end; its reaper is process {reaper.pid}"
                )
    _path(name).unlink(missing_ok=True)
    return True


def _read(name: str) -> dict[str, Any] | None:
    """The record of a cluster that lives; what a dead one left is removed."""
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


def _hosts(record: Mapping[str, Any]) -> Hosts:
    token_path, folder = Path(record["token_path"]), Path(record["folder"])
    return Hosts(record["address"], record["driver_ip"], token_path, folder)


def _path(name: str) -> Path:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return state_folder() / "clusters" / f"{plain}.json"
