"""Network namespaces: every simulated host has its own address and loopback."""

import os
import secrets
import shutil
import socket
import subprocess
from dataclasses import dataclass

from launcher.core.errors import HostError


@dataclass(frozen=True)
class Network:
    """A bridge with one namespace per host: addresses, and commands that create and remove it."""

    subnet: str
    """First three octets, "10.x.y": .1 is the bridge, used by the head; .(k + 2) is host k."""
    name: str
    hosts: int

    @property
    def head_ip(self) -> str:
        return f"{self.subnet}.1"

    def ip(self, process: int) -> str:
        return f"{self.subnet}.{process + 2}"

    def namespace(self, process: int) -> str:
        return f"{self.name}-{process}"

    def inside(self, process: int) -> list[str]:
        """Returns the prefix that runs a command inside a host's namespace."""
        return ["ip", "netns", "exec", self.namespace(process)]

    def setup(self) -> list[list[str]]:
        bridge = [
            ["ip", "link", "add", self.name, "type", "bridge"],
            ["ip", "address", "add", f"{self.head_ip}/24", "dev", self.name],
            ["ip", "link", "set", self.name, "up"],
        ]
        return bridge + [c for process in range(self.hosts) for c in self._host_setup(process)]

    def cleanup(self) -> list[list[str]]:
        commands = []
        for process in range(self.hosts):
            namespace = self.namespace(process)
            commands += [["ip", "netns", "delete", namespace]]
            commands += [["rm", "-rf", f"/etc/netns/{namespace}"]]
        return [*commands, ["ip", "link", "delete", self.name]]

    def _host_setup(self, process: int) -> list[list[str]]:
        namespace, veth = self.namespace(process), f"{self.name}v{process}"
        # Gloo binds to the address of the machine's name: in a namespace, the host's own address.
        names = f"127.0.0.1 localhost\\n{self.ip(process)} {socket.gethostname()}\\n"
        folder = f"/etc/netns/{namespace}"
        return [
            ["ip", "netns", "add", namespace],
            ["sh", "-c", f"mkdir -p {folder} && printf '{names}' > {folder}/hosts"],
            ["ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace],
            ["ip", "link", "set", veth, "master", self.name, "up"],
            ["ip", "-n", namespace, "address", "add", f"{self.ip(process)}/24", "dev", "eth0"],
            ["ip", "-n", namespace, "link", "set", "eth0", "up"],
            ["ip", "-n", namespace, "link", "set", "lo", "up"],
        ]


def plan_network(hosts: int) -> Network:
    """Returns a network with a free subnet and unused names.

    Raises HostError when it cannot be created.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise HostError(
            "provider.netns: network namespaces require root and the `ip` command. Run `launch` as "
            "root, or set netns to false"
        )
    if hosts > 253:
        raise HostError(f"provider.netns: {hosts} hosts, but one network has at most 253")
    routes = subprocess.run(["ip", "-4", "address"], capture_output=True, text=True).stdout
    while f"{(subnet := _random_subnet())}." in routes:
        pass
    return Network(subnet, f"slw{secrets.token_hex(3)}", hosts)


def _random_subnet() -> str:
    return f"10.{16 + secrets.randbelow(224)}.{secrets.randbelow(256)}"
