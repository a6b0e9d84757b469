"""Checks whether hosts can serve a run before a program starts; finds all problems in one pass."""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.core.formatting import format_bytes
from launcher.core.ipv4 import NEEDED, is_ipv6
from launcher.host.preflight import HostReport
from launcher.planning import host_memory
from launcher.planning.spec import LaunchSpec
from trainer.contract.estimates.host_memory import AGENTS_BYTES, Phase
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World
from trainer.contract.protocol.process_names import host_name

GIB = 1 << 30
CLOCKS_S = 5.0
"""Most seconds between a host's clock and this machine's: users read hosts' logs side by side."""
OPEN_FILES = 1024
SHARED_MEMORY = GIB // 16
"""Bytes of /dev/shm that a container has by default (`--shm-size` of `docker run`)."""
COMMAND_CHARACTERS = 60
ERROR = 0.15
"""Largest error of the forecast of a host's memory, as a share of it."""


@dataclass(frozen=True)
class HostProblem:
    """A problem of one host."""

    host: int
    """The number of the host, from 0."""
    text: str
    """The problem and its remedy."""
    is_fatal: bool = True
    """Whether no run can succeed with it."""

    def __str__(self) -> str:
        return f"{host_name(self.host)}: {self.text}"


@dataclass(frozen=True)
class Seen:
    """The result of a host's preflight checks."""

    report: HostReport
    clock_ahead_s: float
    """Least lead over this machine's clock; negative: it is behind."""
    unreachable: str
    """Why it cannot connect to the first host; "" when it can."""


@dataclass(frozen=True)
class Needs:
    """The needs of a run on each host."""

    world: World
    accelerators: bool = True
    """Whether the run is known to compute on accelerators; false for an arbitrary program."""
    checkpoint_bytes: int = 0
    """Bytes needed on the first host's disk; 0 when it stores no checkpoints."""
    host_memory: Phase | None = None
    """Forecast of the phase that needs the most memory of a host, unless it is counted for the
    whole machine."""


def needs_of(launch: LaunchSpec) -> Needs:
    """Returns the needs that are known before the start."""
    world = launch.plan.world
    here = 0 if launch.job.storage else launch.checkpoint_bytes
    forecast = None if world.simulated else launch.host_memory
    return Needs(
        world,
        launch.sends_events,
        checkpoint_bytes=here,
        host_memory=forecast and forecast.peak,
    )


def judge(seen: Mapping[int, Seen], needs: Needs) -> list[HostProblem]:
    """Returns the problems of all hosts, in their order; none when they can serve the run."""
    machines = {one.report.machine for one in seen.values()}
    return [
        problem
        for host, one in sorted(seen.items())
        for problem in (
            *_addresses(host, one, machines, seen[0].report.address),
            *_storage(host, one.report, needs),
            *_accelerators(host, one.report, needs),
            *_limits(host, one, needs),
        )
    ]


def _addresses(host: int, one: Seen, machines: set[str], first: str) -> Iterator[HostProblem]:
    address = one.report.address
    if is_ipv6(address):
        yield HostProblem(host, f"its address is {address}: {NEEDED}")
    if len(machines) > 1 and ipaddress.ip_address(address).is_loopback:
        yield HostProblem(
            host,
            f"its address is {address}, which no other machine can reach. Give its name another "
            "address in /etc/hosts, or start Ray on it with --node-ip-address",
        )
    if one.unreachable:
        yield HostProblem(
            host,
            f"cannot connect to {host_name(0)} at {first}: {one.unreachable}. Check its firewall: "
            "all hosts must reach all ports of the first one",
        )


def _storage(host: int, report: HostReport, needs: Needs) -> Iterator[HostProblem]:
    if report.unwritable:
        yield HostProblem(host, f"cannot write to the run's folder: {report.unwritable}")
    elif host == 0 and report.disk_bytes < needs.checkpoint_bytes:
        yield HostProblem(
            host,
            f"{format_bytes(report.disk_bytes)} of disk space are free, but a checkpoint takes "
            f"{format_bytes(needs.checkpoint_bytes)}. Delete files, or set storage to another "
            "folder",
        )


def _accelerators(host: int, report: HostReport, needs: Needs) -> Iterator[HostProblem]:
    world = needs.world
    if world.on_cpu:
        return
    planned = _chips_of_a_host(world)
    if report.chips != planned:
        yield HostProblem(
            host,
            f"found {report.chips} of {planned} {world.platform.upper()}s. Check the accelerator "
            "type, the driver, and the container's device access",
            is_fatal=needs.accelerators,
        )
    for holder in report.holders:
        command = holder.command[:COMMAND_CHARACTERS]
        yield HostProblem(
            host,
            f"process {holder.pid} of {holder.owner} ({command}) has {holder.device} open. "
            f"End it on that host with `kill {holder.pid}`",
            # A TPU serves one process; monitors, including Ray's own, also hold GPUs open.
            is_fatal=needs.accelerators and world.platform == "tpu",
        )


def _limits(host: int, one: Seen, needs: Needs) -> Iterator[HostProblem]:
    report = one.report
    if abs(one.clock_ahead_s) > CLOCKS_S:
        which = "ahead of" if one.clock_ahead_s > 0 else "behind"
        text = (
            f"its clock is {abs(one.clock_ahead_s):.0f} s {which} this machine's. "
            "Synchronize it with NTP"
        )
        yield HostProblem(host, text, is_fatal=False)
    if report.open_files < OPEN_FILES:
        text = f"open-file limit is {report.open_files}; raise it with `ulimit -n {OPEN_FILES}`"
        yield HostProblem(host, text, is_fatal=False)
    if report.shared_memory_bytes is not None and report.shared_memory_bytes < SHARED_MEMORY:
        text = (
            f"{format_bytes(report.shared_memory_bytes)} of /dev/shm are free; data loaders need "
            f"{format_bytes(SHARED_MEMORY)}"
        )
        yield HostProblem(host, text, is_fatal=False)
    if needs.host_memory:
        yield from _memory(host, report, needs.host_memory)


def _memory(host: int, report: HostReport, peak: Phase) -> Iterator[HostProblem]:
    """Yields a problem when the host's free memory is less than the forecast.

    It is fatal when it is less even if the forecast is too high by `ERROR`. The agents run already.
    """
    needed = peak.total - AGENTS_BYTES
    if report.memory_bytes >= needed:
        return
    _, remedy = host_memory.remedy_of(peak)
    text = (
        f"{format_bytes(report.memory_bytes)} of memory are free, but "
        f"{host_memory.describe(peak)}. {remedy}"
    )
    yield HostProblem(host, text, is_fatal=report.memory_bytes < needed * (1 - ERROR))


def _chips_of_a_host(world: World) -> int:
    """Returns the number of a host's chips: a TPU chip may be two devices."""
    kind = accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
    return kind.chips_per_host if world.platform == "tpu" else world.devices_per_host
