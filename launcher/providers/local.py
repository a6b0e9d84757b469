"""Hosts simulated on this machine: a Ray cluster of our own, one node per host.

Nothing of it outlives its owner: the nodes are the children of a reaper (launcher/reaper.py), which
ends them and deletes their folder when this process ends, in whatever way.
"""

import json
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.processes import Reaped, ReaperError
from launcher.providers import simulated
from launcher.providers.hosts import Hosts, ProviderError
from launcher.providers.network import Network, plan_network
from trainer.spec.plan import World

START_TIMEOUT_S = 120.0
START_TIMEOUT_PER_HOST_S = 30.0
"""Four hosts take 13 s on two idle cores; a machine that trains beside gets twenty times that."""
NODE_IS_UP = "Ray runtime started."
TAIL_LINES = 15
LONGEST_TEMPORARY_FOLDER = 16


def start(
    world: World,
    *,
    netns: bool = False,
    host_env: Mapping[int, Mapping[str, str]] | None = None,
    on_status: Callable[[str], None] = lambda text: None,
) -> Hosts:
    """Start a Ray head and a node per host, and wait until all are up.

    Raises ProviderError with the hosts that are missing and the end of their logs.
    """
    folder = _private_folder()
    network = plan_network(world.processes) if netns else None
    try:
        reaped = Reaped(
            folders=[folder],
            setup=network.setup() if network else [],
            cleanup=network.cleanup() if network else [],
        )
    except ReaperError as error:
        raise ProviderError(f"the hosts could not be started: {error}") from error
    try:
        return _start_nodes(world, reaped, folder, network, host_env or {}, on_status)
    except BaseException:
        reaped.close()
        raise


def _start_nodes(
    world: World,
    reaped: Reaped,
    folder: Path,
    network: Network | None,
    host_env: Mapping[int, Mapping[str, str]],
    on_status: Callable[[str], None],
) -> Hosts:
    token_path = _write_token(folder)
    address = network.ip if network else _loopback_addresses()
    head_ip = network.head_ip if network else address(-1)
    port = _free_port(head_ip)
    environment = simulated.environment(token_path)
    nodes = [simulated.head(head_ip, port, folder, environment)]
    for process in range(world.processes):
        own = {**environment, **host_env.get(process, {})}
        ip = address(process)
        nodes.append(simulated.host(world, process, ip, (head_ip, port), folder, own))
    for node in nodes:
        Path(node["folder"]).mkdir()
    hosts = Hosts(
        address=f"{head_ip}:{port}",
        driver_ip=head_ip,
        token_path=token_path,
        folder=folder,
        reaped=reaped,
    )
    _run(reaped, folder, nodes, network, environment)
    _wait_until_up(reaped, nodes, on_status)
    return hosts


def _run(
    reaped: Reaped,
    folder: Path,
    nodes: list[dict[str, Any]],
    network: Network | None,
    environment: Mapping[str, str],
) -> None:
    """All nodes from one process that imports Ray once; with namespaces, from one in each."""
    groups = {"nodes": ([], nodes)}
    if network:
        groups = {"head": ([], nodes[:1])}
        for process, node in enumerate(nodes[1:]):
            groups[node["name"]] = (network.inside(process), [node])
    for name, (prefix, group) in groups.items():
        listing = folder / f"{name}.json"
        listing.write_text(json.dumps(group))
        command = [*prefix, sys.executable, "-m", "launcher.providers.ray_nodes", str(listing)]
        reaped.start(name, command, environment, folder / f"{name}.starter.log")


def _wait_until_up(
    reaped: Reaped, nodes: list[dict[str, Any]], on_status: Callable[[str], None]
) -> None:
    """Until every node's log says so: no Ray call, so that Ctrl-C works at any moment."""
    limit_s = START_TIMEOUT_S + START_TIMEOUT_PER_HOST_S * len(nodes)
    deadline = time.monotonic() + limit_s
    waiting = list(nodes)
    while waiting:
        up = [node for node in waiting if NODE_IS_UP in _text(node["log"])]
        if up:
            waiting = [node for node in waiting if node not in up]
            on_status(f"{len(nodes) - len(waiting)} of {len(nodes)} Ray nodes are up")
        answers = reaped.answers(0.05)
        over = time.monotonic() > deadline
        ended = answers is None or any("exited" in a or "failed" in a for a in answers)
        ended = ended or any(_has_ended(node) for node in waiting)
        if waiting and (ended or over):
            why = f"within {limit_s:.0f} s" if over else "and will not: a Ray node ended"
            raise ProviderError(_missing(waiting, why))


def _has_ended(node: dict[str, Any]) -> bool:
    """Whether the starter has said that this node is over."""
    folder = Path(node["log"]).parent
    logs = [folder / "nodes.starter.log", folder / f"{node['name']}.starter.log"]
    return any(f'{{"ended": "{node["name"]}"' in _text(log) for log in logs)


def _missing(waiting: list[dict[str, Any]], why: str) -> str:
    names = ", ".join(node["name"] for node in waiting)
    ended = next((node for node in waiting if _has_ended(node)), waiting[0])
    starters = Path(ended["log"]).parent.glob("*.starter.log")
    text = _text(ended["log"]) or "".join(_text(log) for log in starters)
    tail = "\n".join(f"  {line}" for line in text.splitlines()[-TAIL_LINES:])
    return f"{names} did not come up {why}. The end of the log of {ended['name']}:\n{tail}"


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _private_folder() -> Path:
    """Not there yet. Ray's sockets are 80 characters below it, and a socket's path holds 107."""
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= LONGEST_TEMPORARY_FOLDER else Path("/tmp")
    return base / f"slipway-{secrets.token_hex(4)}"


def _write_token(folder: Path) -> Path:
    """A secret of this launch, readable by its user only."""
    path = folder / "token"
    path.touch(0o600, exist_ok=False)
    path.write_text(secrets.token_hex(32))
    return path


def _loopback_addresses() -> Callable[[int], str]:
    """Process -> address in 127.0.0.0/8 (-1: the head), in a random place for each launch."""
    base = (127 << 24) + ((16 + secrets.randbelow(224)) << 16) + (secrets.randbelow(240) << 8)

    def address(process: int) -> str:
        number = base + process + 2
        return socket.inet_ntoa(number.to_bytes(4, "big"))

    return address


def _free_port(ip: str) -> int:
    """A port below the ephemeral range, so that no outgoing connection can take it meanwhile."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            try:
                probe.bind((ip, port))
                return port
            except OSError:
                continue
    raise ProviderError(f"no free port between 20000 and 30000 at {ip}")
