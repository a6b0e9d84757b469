"""Machines that are reached by SSH, on this one: each with an address, a name, a disk and an sshd.

A machine is a network namespace with a host name of its own, where one folder, the same path on all
of them, is its own disk. Processes and all other files they share.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.providers.local.network import Network, plan_network
from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until
from tests.support.uv_cache import uv_cache

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
NEEDED = os.geteuid() == 0 and shutil.which("ip") is not None and SSHD is not None
WHY_NOT = "hosts of their own need root, `ip` and `sshd` (openssh-server)"


@dataclass(frozen=True)
class Machines:
    """As the machine that launches sees them."""

    names: Sequence[str]
    config: Path
    """For `ssh -F`: how each of them is reached."""
    disk: Path
    """The folder that each of them has for itself."""
    disks: Sequence[Path]
    """The same folders, as this machine sees them."""
    network: Network
    key: str
    """The file with the private key that they take."""

    def cluster(self, hosts: Sequence[str] = (), more: str = "") -> Path:
        """A cluster file; `more`: lines of its provider."""
        names = list(hosts or self.names)
        path = self.config.with_name("machines.yaml")
        path.write_text(
            f"accelerator: cpu\nhosts: {len(names)}\ndevices_per_host: 1\n"
            f"provider:\n  kind: ssh\n  hosts: [{', '.join(names)}]\n"
            f"  config: {self.config}\n  remote_dir: {self.disk}\n{more}"
        )
        return path

    @contextmanager
    def hidden(self, number: int) -> Iterator[None]:
        """One of them can be reached from the others only, not from the machine that launches."""
        route = ["unreachable", self.network.ip(number)]
        subprocess.run(["ip", "route", "add", *route], check=True)
        try:
            yield
        finally:
            subprocess.run(["ip", "route", "del", *route], check=True)

    def configure(self, name: str, **options: str) -> None:
        """One more name, by which `ssh` finds something."""
        lines = "".join(f"  {key} {value}\n" for key, value in options.items())
        self.config.write_text(f"Host {name}\n{lines}{self.config.read_text()}")


@contextmanager
def machines(
    folder: Path, names: Sequence[str], traces: Traces, *, own_caches: bool = False
) -> Iterator[Machines]:
    """Running ones; they end with this context. `own_caches`: on their own disks."""
    network = plan_network(len(names))
    disk = folder / "disk"
    disk.mkdir()
    disks = [folder / f"disk-{name}" for name in names]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in network.setup():
            subprocess.run(command, check=True, capture_output=True)
        _keys(folder)
        Path("/run/sshd").mkdir(exist_ok=True)
        for number, name in enumerate(names):
            disks[number].mkdir()
            cache = {"XDG_CACHE_HOME": f"{disk}/cache"} if own_caches else {}
            running.append(_start(folder, number, name, network, traces, cache))
        config = _client_config(folder, names, network)
        for number in range(len(names)):
            wait_until(lambda n=number: _listens(network.ip(n)), timeout_s=20.0)
        yield Machines(names, config, disk, disks, network, f"{folder}/user_key")
    finally:
        for process in running:
            process.terminate()
            process.wait(20.0)
        for command in network.cleanup():
            subprocess.run(command, capture_output=True)


def _start(
    folder: Path,
    number: int,
    name: str,
    network: Network,
    traces: Traces,
    variables: dict[str, str],
) -> subprocess.Popen[bytes]:
    """An sshd in a namespace: its children have the machine's name, address and disk."""
    ip, namespace = network.ip(number), network.namespace(number)
    hosts = Path(f"/etc/netns/{namespace}/hosts")
    hosts.write_text(f"127.0.0.1 localhost\n{ip} {name}\n")
    config = folder / f"sshd-{name}"
    config.write_text(_server_config(folder, ip, traces, variables))
    script = (
        f"hostname {name} && mount --bind {folder}/disk-{name} {folder}/disk && "
        f"exec {SSHD} -D -e -f {config}"
    )
    with (folder / f"sshd-{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*network.inside(number), "unshare", "--uts", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _server_config(folder: Path, ip: str, traces: Traces, variables: dict[str, str]) -> str:
    name, _, value = traces.mark.partition("=")
    pythons = str(Path(sys.base_prefix) / "bin")
    environment = {
        name: value,
        "TMPDIR": str(traces.temporary),
        # As in a nested shell, bash leaves out the user's own ~/.bashrc, which may lock files.
        "SHLVL": "1",
        "PATH": f"{pythons}:/usr/local/bin:/usr/bin:/bin",
        "XDG_STATE_HOME": f"{folder}/disk/state",
        "UV_OFFLINE": "1",  # what is installed here is in uv's cache
        "UV_CACHE_DIR": uv_cache(),
        "UV_LINK_MODE": "symlink",
        "UV_COMPILE_BYTECODE": "0",  # two cores compile only what is imported sooner
        "UV_NO_PROGRESS": "1",
        **variables,
    }
    return "\n".join(
        [
            "Port 22",
            f"ListenAddress {ip}",
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/user_key.pub",
            "StrictModes no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PidFile none",
            "AcceptEnv UV_PYTHON_PREFERENCE",
            "SetEnv " + " ".join(f"{key}={text}" for key, text in environment.items()),
            "",
        ]
    )


def _client_config(folder: Path, names: Sequence[str], network: Network) -> Path:
    """One that nothing of this machine's own configuration reaches."""
    key = (folder / "host_key.pub").read_text().split()
    lines = [f"{network.ip(n)} {key[0]} {key[1]}\n" for n in range(len(names))]
    (folder / "known_hosts").write_text("".join(lines))
    path = folder / "ssh_config"
    known = "Host {}\n  HostName {}\n  IdentityFile {}/user_key\n"
    hosts = "".join(known.format(name, network.ip(n), folder) for n, name in enumerate(names))
    path.write_text(
        f"{hosts}Host *\n  User root\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking ask\n  LogLevel ERROR\n"
    )
    return path


def _keys(folder: Path) -> None:
    for name in ("host_key", "user_key", "other_key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def _listens(ip: str) -> bool:
    try:
        socket.create_connection((ip, 22), 1.0).close()
    except OSError:
        return False
    return True
