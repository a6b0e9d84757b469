"""`launch doctor` for remote hosts: runs the command on the first of them."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter

from launcher.cluster.schema import Gcp, Slurm, Ssh, cluster_key
from launcher.core.errors import HostError
from launcher.core.formatting import pluralize
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.slice_records import list_slices
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray.host_protocol import DoctorOrder
from launcher.providers.slurm import submit
from launcher.providers.ssh.connection import hosts_of
from launcher.providers.ssh.provision import provision
from launcher.providers.ssh.sessions import Sessions
from launcher.providers.ssh.uv_binary import find_uv

Tell = Callable[[str], None]


def look_there(launch: LaunchSpec, on_status: Tell) -> dict[int, Seen]:
    """Inspects every host and returns its report, by process. Raises HostError, ConfigError."""
    provider = launch.cluster.provider
    if isinstance(provider, Ssh):
        said = _by_ssh(launch, provider, on_status)
    elif isinstance(provider, Gcp):
        said = _by_ssh(launch, _held(launch, on_status), on_status)
    elif isinstance(provider, Slurm):
        said = _in_queue(launch, provider, on_status)
    else:
        raise HostError(
            "hosts behind a Jobs API are looked at by a launch, before its program starts; for "
            "them alone type `launch doctor` on a node of that cluster, with address: auto"
        )
    return _read(said)


def _by_ssh(launch: LaunchSpec, settings: Ssh, on_status: Tell) -> str:
    """Runs the doctor in the environment that a run gets. Leaves only files on the hosts."""
    hosts, world = hosts_of(settings), launch.plan.world
    place = DoctorOrder(
        cluster=launch.cluster.model_dump(mode="json"), cluster_name=launch.cluster_name
    )
    code, storage = pack(Path.cwd()), launch.cluster.storage
    provisioned = provision(hosts, code, find_uv(), world.platform, on_status, storage)
    with Sessions(hosts, provisioned) as sessions:
        sessions.start(world, on_status)
        on_status(f"looking at {pluralize(len(hosts), 'host')}")
        return sessions.look(place)["output"]


def _held(launch: LaunchSpec, on_status: Tell) -> Ssh:
    """Returns the SSH settings of slices that are held for a run. Requests no new slices.

    Raises HostError when none are held.
    """
    key = cluster_key(launch.cluster_ref.name)
    for folder, note in list_slices():
        if note.cluster_key == key and note.stage in ("running", "kept"):
            return TpuSliceRequest(folder, note).wait(on_status)
    raise HostError(
        f"no slices of {launch.cluster_name} are held, and the doctor asks for none: a launch "
        "looks at its hosts before its program starts, and after a run that failed they stay for "
        "provider.autostop_minutes"
    )


def _in_queue(launch: LaunchSpec, settings: Slurm, on_status: Tell) -> str:
    on_status("waiting for hosts in Slurm's queue")
    with tempfile.TemporaryDirectory(prefix=".slipway-doctor-", dir=Path.cwd()) as shared:
        world, name = launch.plan.world, launch.cluster_ref.lasting().name
        return submit.look(Path(shared), name, world, settings)


def _read(said: str) -> dict[int, Seen]:
    """Parses the doctor's output. Raises HostError with output that has no report."""
    try:
        parsed = json.loads(said[said.index("{\n") :])
    except ValueError:
        raise HostError(f"the doctor could not look at the hosts:\n{said.strip()}") from None
    seen = TypeAdapter(Seen)
    return {host.pop("process"): seen.validate_python(host) for host in parsed["hosts"]}
