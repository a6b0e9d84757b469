"""Sessions with all hosts: the launching machine's side of `host_session.py`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from launcher.core.errors import HostError
from launcher.core.formatting import pluralize
from launcher.providers.ray.host_protocol import (
    DoctorOrder,
    EndNode,
    Failed,
    HeadPort,
    LaunchEnded,
    NodeGone,
    NodeOrder,
    NodeUp,
    RunBegun,
    RunOrder,
    RunStarted,
)
from launcher.providers.ray.node_group import START_TIMEOUT_PER_HOST_S, START_TIMEOUT_S
from launcher.providers.ray.workspace import new_token
from launcher.providers.ssh.connection import Connection, Host, SshError
from launcher.providers.ssh.parallel import everywhere
from launcher.providers.ssh.provision import Provisioned
from trainer.contract.planning.plan import World

MODULE = "launcher.providers.ssh.host_session"
PORT_TIMEOUT_S, ENDING_TIMEOUT_S = 60.0, 60.0
BEGIN_TIMEOUT_S = 120.0
"""Seconds for `launch` on the head to check the job again and create the run's folder."""


class Sessions:
    """Sessions with all hosts.

    Each host ends what it started when this object closes before the run has begun.
    """

    def __init__(self, hosts: Sequence[Host], provisioned: Provisioned) -> None:
        self._hosts, self._provisioned = hosts, provisioned
        self._connections: dict[int, Connection] = {}

    def start(self, world: World, on_status: Callable[[str], None]) -> None:
        """Starts a Ray node on every host. Raises HostError with the hosts that have none."""
        on_status(f"starting Ray on {pluralize(len(self._hosts), 'host')}")
        token = new_token()
        up_timeout_s = START_TIMEOUT_S + START_TIMEOUT_PER_HOST_S * len(self._hosts)

        def order(number: int, head: tuple[str, int] | None) -> Connection:
            ip = self._provisioned.addresses[number]
            connection = Connection(self._hosts[number], self._provisioned.command(MODULE))
            self._connections[number] = connection
            connection.send(NodeOrder(token, number, world, ip, head))
            return connection

        def start_head() -> int:
            return order(0, None).answer(HeadPort, timeout_s=PORT_TIMEOUT_S).port

        (port,) = everywhere(self._hosts[:1], lambda _: start_head())
        head = (self._provisioned.addresses[0], port)

        def start(number: int) -> None:
            connection = self._connections[0] if number == 0 else order(number, head)
            connection.answer(NodeUp, timeout_s=up_timeout_s)

        everywhere(self._hosts, start)

    def begin(self, order: RunOrder) -> RunStarted | LaunchEnded:
        """Starts the run on the head, where it then continues without this process.

        Returns LaunchEnded when `launch` refuses the run. Raises HostError when the head fails or
        does not answer.
        """
        head = self._connections[0]
        try:
            head.send(order)
            answer = head.answer(RunStarted, LaunchEnded, timeout_s=BEGIN_TIMEOUT_S)
        except SshError as error:
            raise HostError(f"{self._hosts[0].name}: {error}") from None
        for number in range(1, len(self._hosts)) if isinstance(answer, RunStarted) else ():
            with suppress(SshError):  # the run handles a host that is lost now
                self._connections[number].send(RunBegun())
        return answer

    def inspect_hosts(self, order: DoctorOrder) -> LaunchEnded:
        """Returns the end of `launch doctor` on the head.

        Raises HostError when the head fails or does not answer.
        """
        head = self._connections[0]
        try:
            head.send(order)
            return head.answer(LaunchEnded, timeout_s=BEGIN_TIMEOUT_S)
        except SshError as error:
            raise HostError(f"{self._hosts[0].name}: {error}") from None

    def ended(self, timeout_s: float) -> LaunchEnded | None:
        """Returns the end of the run's `launch` on the head.

        Returns None when the run has not ended or the head cannot be reached.
        """
        try:
            return self._connections[0].answer(LaunchEnded, timeout_s=timeout_s)
        except SshError:
            return None

    def end(self) -> None:
        """Ends every host's node immediately.

        Raises HostError with the hosts that do not confirm the end.
        """

        def end(number: int) -> None:
            connection = self._connections[number]
            if number:
                with suppress(SshError):  # its node may have ended with the head's
                    connection.send(EndNode())
            while isinstance(
                connection.answer(NodeGone, Failed, timeout_s=ENDING_TIMEOUT_S), Failed
            ):
                pass

        everywhere(self._hosts, end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.hang_up()
        for connection in self._connections.values():
            connection.close()
