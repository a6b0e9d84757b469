"""`launch doctor` for remote hosts: runs the command on the first of them."""

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter

from launcher.cluster.schema import Ssh
from launcher.core.errors import HostError
from launcher.core.formatting import pluralize
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray.host_protocol import DoctorOrder
from launcher.providers.ssh.connection import hosts_of
from launcher.providers.ssh.provision import provision
from launcher.providers.ssh.sessions import Sessions
from launcher.providers.ssh.uv_binary import find_uv


def inspect_by_ssh(
    launch: LaunchSpec, settings: Ssh, on_status: Callable[[str], None]
) -> dict[int, Seen]:
    """Runs the doctor in the environment that a run gets, and returns its reports by host.

    Leaves only files on the hosts. Raises HostError.
    """
    hosts, world = hosts_of(settings), launch.plan.world
    order = DoctorOrder(launch.cluster, launch.cluster_name)
    code, storage = pack(Path.cwd()), launch.cluster.storage
    provisioned = provision(hosts, code, find_uv(), world.platform, on_status, storage)
    with Sessions(hosts, provisioned) as sessions:
        sessions.start(world, on_status)
        on_status(f"inspecting {pluralize(len(hosts), 'host')}")
        return parse_reports(sessions.inspect_hosts(order).output)


def parse_reports(output: str) -> dict[int, Seen]:
    """Parses the output of `launch doctor -o json`.

    Raises HostError with output that has no report.
    """
    try:
        parsed = json.loads(output[output.index("{\n") :])
    except ValueError:
        raise HostError(f"the doctor could not inspect the hosts:\n{output.strip()}") from None
    seen = TypeAdapter(Seen)
    return {one.pop("host"): seen.validate_python(one) for one in parsed["hosts"]}
