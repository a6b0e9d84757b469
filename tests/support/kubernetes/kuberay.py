"""Plays KubeRay's operator, Kueue and the kubelets: a RayCluster's pods are real Ray nodes.

Each pod is a node at an address of its own on this machine, with the environment that its template
gives it; the token comes out of the Secret. Hosts have no chips, and images are not looked at.
"""

import secrets
import shutil
import tempfile
import threading
from pathlib import Path

from launcher.cluster.schema import Cluster as ClusterFile
from launcher.host.process_tree import ProcessTree
from launcher.providers.ray import node_spec
from launcher.providers.ray.node import NodeSpec, is_up
from launcher.providers.ray.node_group import Nodes
from launcher.providers.ray.workspace import free_port
from tests.support.assert_no_leftovers import Traces
from tests.support.kubernetes.server import Cluster, Object
from tests.support.processes import wait_until
from tests.support.users_nodes import as_users_start_it

QUEUE = "kueue.x-k8s.io/queue-name"
START_TIMEOUT_S = 240.0
ABSENT = 'Back-off pulling image "absent": ErrImagePull: code = NotFound'


class KubeRay:
    """Of one cluster."""

    def __init__(self, cluster: Cluster, traces: Traces) -> None:
        self._cluster, self._traces = cluster, traces
        self._reaped: dict[str, tuple[ProcessTree, Path]] = {}
        self._lock = threading.RLock()
        self.unpullable = 0
        """The last so many hosts' images are never there."""
        self.may_admit = threading.Event()
        """What a queue waits for."""
        cluster.on_created, cluster.on_deleted = self._created, self._deleted

    def close(self) -> None:
        """End what launches have left."""
        self.may_admit.set()
        for name in list(self._reaped):
            self._deleted(name)

    def _created(self, cluster: Object) -> None:
        threading.Thread(target=self._start, args=[cluster], daemon=True).start()

    def _start(self, cluster: Object) -> None:
        if QUEUE in cluster["metadata"]["labels"]:
            assert cluster["spec"]["suspend"]
            self.may_admit.wait()
            cluster["spec"]["suspend"] = False
        with self._lock:
            if "deletionTimestamp" in cluster["metadata"]:
                return
            started = self._nodes(cluster, self._pods(cluster))
        for ip, pod, node in started:
            wait_until(lambda node=node: is_up(node) or not self._lives(cluster), START_TIMEOUT_S)
            ready = {"type": "Ready", "status": "True"}
            pod["status"] = {"phase": "Running", "podIP": ip, "conditions": [ready]}

    def _pods(self, cluster: Object) -> list[Object]:
        """The head's, and of each replica of the group as many as it has hosts."""
        spec, name = cluster["spec"], cluster["metadata"]["name"]
        group = spec["workerGroupSpecs"][0]
        hosts = group["replicas"] * group["numOfHosts"]
        templates = [spec["headGroupSpec"]["template"], *[group["template"]] * hosts]
        return [
            self._cluster.create(
                "pods",
                {
                    "metadata": {
                        "name": f"{name}-{number}",
                        "labels": {
                            "ray.io/cluster": name,
                            "ray.io/node-type": "worker" if number else "head",
                        },
                    },
                    "spec": template["spec"],
                    "status": {"phase": "Pending"},
                },
            )
            for number, template in enumerate(templates)
        ]

    def _nodes(self, cluster: Object, pods: list[Object]) -> list[tuple[str, Object, NodeSpec]]:
        """Starts them; gives the address, pod and node of each that is to come up."""
        name, hosts = cluster["metadata"]["name"], len(pods) - 1
        parent = Path(tempfile.mkdtemp(prefix="kr-", dir="/tmp"))
        folder = parent / "ray"
        reaped = ProcessTree(folders=[folder])
        self._reaped[name] = reaped, parent
        network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        head_ip, port = f"{network}.1", free_port(f"{network}.1")
        cluster["status"] = {"endpoints": {"gcs-server": str(port)}}
        provider = {"kind": "local"}
        file = {"accelerator": "cpu", "hosts": hosts, "devices_per_host": 1, "provider": provider}
        world = ClusterFile.model_validate(file).world(simulated=True)
        head = node_spec.head(head_ip, port, folder, self._environment(pods[0]))
        made = [as_users_start_it(head)]

        def host(process: int, generation: int) -> NodeSpec:
            environment = self._environment(pods[process + 1])
            ip, at = f"{network}.{process + 2}", (head_ip, port)
            node = node_spec.host(world, process, generation, ip, at, folder, environment)
            made.append(as_users_start_it(node))
            return made[-1]

        nodes = Nodes(reaped, folder, self._environment(pods[0]), host, None)
        nodes.start(made[0], hosts - self.unpullable)
        for pod in pods[len(made) :]:
            absent = {"reason": "ImagePullBackOff", "message": ABSENT}
            pod["status"]["containerStatuses"] = [{"state": {"waiting": absent}}]
        return [(f"{network}.{n + 1}", pods[n], node) for n, node in enumerate(made)]

    def _environment(self, pod: Object) -> dict[str, str]:
        """What the container's template says, over what every container has."""
        own = node_spec.environment(Path("/nowhere"))
        own = {k: v for k, v in own.items() if k not in ("PYTHONPATH", "RAY_AUTH_TOKEN_PATH")}
        for one in pod["spec"]["containers"][0]["env"]:
            reference = one.get("valueFrom", {}).get("secretKeyRef")
            if reference is None:
                own[one["name"]] = one["value"]
            else:
                key = "secrets", reference["name"]
                wait_until(lambda key=key: key in self._cluster.objects)  # as the kubelet does
                secret = self._cluster.get(*key)
                own[one["name"]] = secret["stringData"][reference["key"]]
        name, _, value = self._traces.mark.partition("=")
        return {**own, name: value}

    def _lives(self, cluster: Object) -> bool:
        return cluster["metadata"]["name"] in self._reaped

    def _deleted(self, name: str) -> None:
        with self._lock:
            if name in self._reaped:
                reaped, parent = self._reaped.pop(name)
                assert reaped.close()
                shutil.rmtree(parent)
            for pod in self._cluster.of("pods"):
                if pod["metadata"]["labels"]["ray.io/cluster"] == name:
                    self._cluster.forget("pods", pod["metadata"]["name"])
