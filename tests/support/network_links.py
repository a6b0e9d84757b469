"""The network of a simulated host in a namespace of its own: cut, mended, delayed. Needs root."""

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IS_ROOT_WITH_IP = os.geteuid() == 0 and shutil.which("ip") is not None


class Link:
    """Between the host on which a process runs and the bridge that all hosts share."""

    def __init__(self, process: int) -> None:
        namespace = _ip("netns", "identify", str(process)).strip()
        self._bridge, _, number = namespace.partition("-")
        self._port = f"{self._bridge}v{number}"

    def down(self) -> None:
        """As if its cable were pulled."""
        _ip("link", "set", self._port, "down")

    def up(self) -> None:
        _ip("link", "set", self._port, "up")

    def lose_all(self) -> None:
        """Drops everything, without an error at either end."""
        self._unplug()

    @contextmanager
    def delayed(self, delay_s: float) -> Iterator[None]:
        """What the host sends arrives so much later; by a program, as kernels may lack netem."""
        inner, outer = f"{self._port}i", f"{self._port}o"
        _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
        _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("link", "set", inner, "up")
        _keep_mute(inner)
        self._unplug()
        carrier = subprocess.Popen([sys.executable, __file__, self._port, inner, str(delay_s)])
        try:
            yield
        finally:
            carrier.kill()
            carrier.wait()
            _ip("link", "delete", inner)
            _ip("link", "set", self._port, "master", self._bridge)

    def _unplug(self) -> None:
        """From the bridge; both ends stay up."""
        _keep_mute(self._port)
        _ip("link", "set", self._port, "nomaster")


def _keep_mute(port: str) -> None:
    """This machine itself must not answer there."""
    Path(f"/proc/sys/net/ipv4/conf/{port}/arp_ignore").write_text("8")


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def carry(port: str, inner: str, delay_s: float) -> None:
    """Frames from one to the other and back, with what the kernel still has to do to them."""
    all_protocols, level, with_header = 3, 263, 15  # ETH_P_ALL, SOL_PACKET, PACKET_VNET_HDR
    sockets = []
    for name in (port, inner):
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(all_protocols))
        one.setsockopt(level, with_header, 1)
        one.bind((name, all_protocols))
        sockets.append(one)
    from_host, to_host = sockets
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for one in select.select(sockets, [], [], wait_s)[0]:
            frame, (_, _, kind, *_) = one.recvfrom(1 << 17)
            if kind == socket.PACKET_OUTGOING:
                continue
            if one is from_host:
                waiting.append((time.monotonic() + delay_s, frame))
            else:
                from_host.send(frame)
        while waiting and waiting[0][0] <= time.monotonic():
            to_host.send(waiting.popleft()[1])


if __name__ == "__main__":
    carry(sys.argv[1], sys.argv[2], float(sys.argv[3]))
