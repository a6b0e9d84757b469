"""A Ray cluster as somebody else would have started it: nothing on it is Slipway's."""

import json
import os
import platform
import secrets
import signal
import subprocess
import sys
from importlib.metadata import version
from typing import Any

from launcher.host.process_tree import ProcessTree
from launcher.providers.ray import node_spec
from launcher.providers.ray.node import NodeSpec
from launcher.providers.ray.node_group import Nodes
from tests.support import users_nodes
from tests.support.assert_no_leftovers import Traces
from tests.support.users_nodes import as_users_start_it
from trainer.contract.planning.plan import World

OF_RUNS = ("ray::Agent", "-m trainer", "/launcher/host/", "program.py")
LOOK = """
import json, sys, ray
from ray._private import state
from ray.util import placement_group_table
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)
groups = [g["state"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
actors = [a["State"] for a in state.actors().values() if a["State"] != "DEAD"]
print(json.dumps({"groups": groups, "actors": actors}))
"""
TAKE = """
import sys, ray
from ray.util.tpu import SlicePlacementGroup
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)
slices = SlicePlacementGroup(topology=sys.argv[3], accelerator_version=sys.argv[4])
ray.get(slices.placement_group.ready(), timeout=60)
print(slices.bundle_label_selector[0]["ray.io/tpu-slice-name"])
slices.shutdown()
"""
ALTER = """
import json, sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_put(
    b"CLUSTER_METADATA", sys.argv[2].encode(), True, b"cluster"
)
"""


class RayCluster:
    """A head without resources, and a node for each host of a world, as real ones look to Ray.

    Its hosts do not share the folder `apart`, where this machine allows that.
    """

    def __init__(
        self, world: World, *, with_token: bool = True, with_dashboard: bool = False
    ) -> None:
        self.traces = Traces()
        """Of its nodes, and of all that runs on them."""
        folder = self.traces.temporary / "ray"
        self.apart = self.traces.temporary / "apart"
        self.apart.mkdir()
        unshare = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
        self.has_apart = unshare.returncode == 0
        self._reaped = ProcessTree(folders=[folder])
        self.token_path = folder / "token"
        self.token_path.write_text(secrets.token_hex(32))
        self.environment = self._environment(with_token)
        self.network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        """Of the addresses of its nodes: .1 is the head's, .2 the first host's."""
        self.head_ip, port = f"{self.network}.1", 20_000 + secrets.randbelow(10_000)
        self.address = f"{self.head_ip}:{port}"
        self.dashboard = f"http://{self.head_ip}:{port + 1}"

        def host(process: int, generation: int) -> NodeSpec:
            ip, at = f"{self.network}.{process + 2}", (self.head_ip, port)
            node = node_spec.host(world, process, generation, ip, at, folder, self.environment)
            return as_users_start_it(node)

        nodes = Nodes(self._reaped, folder, self.environment, host, None)
        head = as_users_start_it(node_spec.head(self.head_ip, port, folder, self.environment))
        if with_dashboard:
            head = users_nodes.with_dashboard(head, self.head_ip, port + 1)
        nodes.start(head, world.processes, self._inside)
        nodes.wait_until_up(lambda text: None)

    def left(self) -> dict[str, Any]:
        """Placement groups and actors that live, and processes of runs."""
        command = [sys.executable, "-c", LOOK, self.address, self.head_ip]
        answer = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return {**json.loads(answer.stdout.splitlines()[-1]), "processes": self.programs()}

    def slice_for_others(self, topology: str, version: str) -> str:
        """Returns the name of the slice that Ray itself reserves for another program."""
        command = [sys.executable, "-c", TAKE, self.address, self.head_ip, topology, version]
        answer = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.splitlines()[-1]

    def programs(self) -> list[str]:
        """What runs on its hosts and is not Ray's own."""
        commands = self.traces.processes().values()
        return [c for c in commands if any(word in c for word in OF_RUNS)]

    def claims_versions(self, ray: str, python: str) -> None:
        """What it says of itself from now on."""
        said = json.dumps({"ray_version": ray, "python_version": python})
        command = [sys.executable, "-c", ALTER, self.address, said]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def claims_its_own_versions(self) -> None:
        self.claims_versions(version("ray"), platform.python_version())

    def kill_host(self, process: int) -> None:
        self._kill("raylet/raylet", f"{self.traces.temporary}/ray/{process}/")

    def kill_head(self) -> None:
        self._kill("gcs_server", f"{self.traces.temporary}/ray/head/")

    def _kill(self, program: str, folder: str) -> None:
        for process, command in self.traces.processes().items():
            if command.split(" ", 1)[0].endswith(program) and folder in command:
                os.kill(process, signal.SIGKILL)
                return
        raise LookupError(f"no {program} in {folder}")

    def close(self) -> None:
        assert self._reaped.close()
        self.traces.close()

    def _inside(self, process: int) -> list[str]:
        """What a host's commands begin with: each has a disk of its own at `apart`, as root."""
        del process
        if not self.has_apart:
            return []
        mount = f'mount -t tmpfs none {self.apart} && exec "$0" "$@"'
        return ["unshare", "--mount", "sh", "-c", mount]

    def _environment(self, with_token: bool) -> dict[str, str]:
        """Of its nodes: they do not know where Slipway is."""
        own = node_spec.environment(self.token_path)
        own.pop("PYTHONPATH")
        if not with_token:
            own["RAY_AUTH_MODE"] = "disabled"
        name, _, value = self.traces.mark.partition("=")
        return {**own, name: value}
