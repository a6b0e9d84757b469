"""Formats numbers, hosts and exit statuses as text."""

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.contract.planning.plan import World


def format_bytes(count: float) -> str:
    """Formats bytes in binary units with three significant digits: 3.42 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def format_seconds(seconds: float) -> str:
    """Formats a duration as 1:05:09, 5:09 or 4.2 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_percent(fraction: float) -> str:
    """Formats a fraction in percent with two significant digits: 0.0012 %, 19 %, 1,400 %."""
    percent = 100 * fraction
    return f"{percent:,.0f} %" if percent >= 10 else f"{percent:.2g} %"


def pluralize(number: int, noun: str) -> str:
    """Returns a count with its noun: "1 host", "4 hosts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural(noun)}"


def plural(noun: str) -> str:
    """Returns the plural of a noun: "hosts", "processes"."""
    return noun + ("es" if noun.endswith("s") else "s")


def describe_hosts(world: "World") -> str:
    """Describes hosts and their devices: "2 hosts x 8 devices, 8 processes per host"."""
    text = f"{pluralize(world.hosts, 'host')} x {pluralize(world.devices_per_host, 'device')}"
    is_divided = world.processes_per_host > 1
    return f"{text}, {world.processes_per_host} processes per host" if is_divided else text


def describe_status(status: int) -> str:
    """Describes a wait status: "exited with code 1", "was killed by SIGKILL"."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
