"""`launch up` and `launch down`: clusters that outlive a command."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from launcher.cluster.schema import Cluster, cluster_key, find_cluster, with_spares
from launcher.commands.down import ToEnd, to_end
from launcher.commands.held_slices import held_lines
from launcher.core.errors import HostError, InterruptError, UsageError
from launcher.core.formatting import pluralize
from launcher.core.json_output import print_json
from launcher.core.signals import ending_on_signals
from launcher.gang import waiting_agents
from launcher.providers.local import memory, provider, warm
from trainer.contract.planning.plan import World


@dataclass(frozen=True, kw_only=True)
class UpResult:
    """A simulated cluster that stays up."""

    cluster: str
    hosts: int
    started: bool
    """Whether this command has started it; false when it was up already."""
    command: str
    """The command that ends it."""


@dataclass(frozen=True, kw_only=True)
class EndedResource:
    """A warm cluster, or slices of a cloud."""

    name: str
    message: str
    """Description of the result."""


@dataclass(frozen=True, kw_only=True)
class DownResult:
    """What was ended; nothing when the cluster was not up."""

    cluster: str
    ended: Sequence[EndedResource]


def keep_warm(name_or_path: str, simulate_hosts: int | None, *, as_json: bool) -> None:
    """Starts a simulated cluster that outlives this command.

    Raises ConfigError for an unknown cluster or a size that it cannot have, HostError when the
    cluster does not start.
    """
    console, found = Console(stderr=as_json), find_cluster(name_or_path)
    cluster, name = found.value, Path(found.source).stem
    try:
        is_simulated = not cluster.provider.is_on_this_machine
        world = with_spares(cluster.world(is_simulated, simulate_hosts), cluster.spares)
    except ValueError as error:
        raise UsageError(f"--simulate-hosts {simulate_hosts}: {error}") from None
    try:
        with warm.locked(name):
            is_new = _keep_warm(name, cluster, world, cluster_key(name_or_path), console)
    except KeyboardInterrupt:
        raise InterruptError("interrupted; everything has ended") from None
    command = shlex.join(["launch", "down", name])
    if as_json:
        hosts = world.hosts
        print_json(UpResult(cluster=name, hosts=hosts, started=is_new, command=command))
        return
    up = f"is up: {pluralize(world.hosts, 'host')}. End it with `{command}`"
    console.print(f"{name} {up if is_new else 'is up already'}")


def _keep_warm(name: str, cluster: Cluster, world: World, key: str, console: Console) -> bool:
    """Starts the cluster. Returns False when it is already up. Raises HostError."""
    settings = cluster.provider.simulation
    shared = warm.WarmSettings(world, settings)
    if warm.find(name, shared):
        return False
    memory.refuse_if_too_large(world, state_bytes=0)
    with console.status(f"starting {pluralize(world.hosts, 'host')}"), ending_on_signals():
        hosts = provider.start(world, settings)
        if provider.start_standby_pool(hosts, world, settings):
            waiting_agents.keep_waiting(hosts)
        warm.keep(name, shared, hosts, key)
    return True


def end(given: str, *, agreed: bool, as_json: bool) -> None:
    """Ends what `keep_warm` started, or releases slices.

    `given` is the name or path of a cluster, or the name of slices. `agreed` skips confirmation.

    Raises UsageError without a confirmation, ConfigError when there is nothing to end and no
    cluster of that name, HostError for what could not be ended.
    """
    try:
        with warm.locked(Path(given).stem):
            ended = _end(given, agreed, Console(stderr=as_json), Console(stderr=True))
    except KeyboardInterrupt:
        raise InterruptError("interrupted") from None
    if as_json:
        print_json(DownResult(cluster=Path(given).stem, ended=ended))


def _end(given: str, agreed: bool, console: Console, errors: Console) -> list[EndedResource]:
    found = to_end(given, lambda text: errors.print(Text(text), soft_wrap=True))
    if not found:
        _print_others(errors)
        find_cluster(given)  # a misspelled name must not look like a cluster that has ended
        console.print(f"{Path(given).stem} was not up")
        return []
    asked = [thing for thing in found if thing.is_asked]
    if asked and not agreed:
        _confirm(asked, errors)
    ended = _end_all(found, console)
    console.print(f"{Path(given).stem} is down")
    return ended


def _confirm(asked: Sequence[ToEnd], errors: Console) -> None:
    """Asks the user. Raises KeyboardInterrupt for a no, UsageError without a terminal."""
    errors.print(Text("launch down ends:"))
    for thing in asked:
        errors.print(Text(f"  {thing}"), soft_wrap=True)
    if not sys.stdin.isatty():
        raise UsageError("nothing was ended: pass --yes, or run this command on a terminal")
    if not Confirm.ask("continue?", default=False, console=errors):
        raise KeyboardInterrupt


def _end_all(found: Sequence[ToEnd], console: Console) -> list[EndedResource]:
    """Ends everything; a failure does not keep the rest from ending. Raises HostError."""
    ended, problems = [], []
    for thing in found:
        try:
            with console.status(f"ending {thing.name}"):
                result = thing.end(console)
        except HostError as error:
            problems.append(f"{thing.name}: {error}")
            continue
        console.print(Text(result), soft_wrap=True)
        ended.append(EndedResource(name=thing.name, message=result))
    if problems:
        raise HostError("\n".join(problems))
    return ended


def _print_others(errors: Console) -> None:
    if lines := list(held_lines()):
        errors.print(Text("held, of other clusters:"))
        for line in lines:
            errors.print(Text(f"  {line}"), soft_wrap=True)
