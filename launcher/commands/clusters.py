"""`launch up` and `launch down`: clusters that outlive a command."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.prompt import Confirm
from rich.text import Text

from launcher.cluster.schema import Cluster, cluster_key
from launcher.commands.down import ToEnd, to_end
from launcher.commands.held_slices import held_lines
from launcher.core.errors import HostError
from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, NO_CLUSTER, OK, fail
from launcher.core.formatting import pluralize
from launcher.core.signals import ending_on_signals
from launcher.providers.local import memory, provider, warm
from trainer.contract.config.loader import Loaded
from trainer.contract.planning.plan import World


def keep_warm(found: Loaded[Cluster], given: str, simulate_hosts: int | None) -> int:
    """Starts a simulated cluster that outlives this command; returns the exit code of `launch`.

    `given` is the name or path that the user typed.
    """
    console, errors, cluster = Console(), Console(stderr=True), found.value
    name = Path(found.source).stem
    try:
        world = cluster.world(not cluster.provider.is_on_this_machine, simulate_hosts)
    except ValueError as error:
        return fail(errors, f"--simulate-hosts {simulate_hosts}: {error}", BAD_USAGE)
    try:
        with warm.locked(name):
            is_new = _keep_warm(name, cluster, world, cluster_key(given), console)
    except HostError as error:
        return fail(errors, str(error), NO_CLUSTER)
    except KeyboardInterrupt:
        return fail(errors, "interrupted; everything is ended", INTERRUPTED)
    up = f"is up: {pluralize(world.processes, 'host')}. End it with `launch down {name}`"
    console.print(f"{name} {up if is_new else 'is up already'}")
    return OK


def _keep_warm(name: str, cluster: Cluster, world: World, key: str, console: Console) -> bool:
    """Starts the cluster. Returns False when it is already up. Raises HostError."""
    settings = cluster.provider.simulation
    fingerprint = warm.settings_of(world, settings)
    if warm.find(name, fingerprint):
        return False
    memory.refuse_if_too_large(world, state_bytes=0)
    with console.status(f"starting {pluralize(world.processes, 'host')}"), ending_on_signals():
        warm.keep(name, fingerprint, provider.start(world, settings), key)
    return True


def end(given: str, *, agreed: bool) -> int:
    """Ends what `keep_warm` started, or releases slices; returns the exit code of `launch`.

    `given` is the name or path of a cluster, or the name of slices. `agreed` skips confirmation.
    """
    errors = Console(stderr=True)
    try:
        with warm.locked(Path(given).stem):
            return _end(given, agreed, errors)
    except HostError as error:
        return fail(errors, str(error), NO_CLUSTER)
    except KeyboardInterrupt:
        return fail(errors, "interrupted", INTERRUPTED)


def _end(given: str, agreed: bool, errors: Console) -> int:
    console = Console()
    found = to_end(given, lambda text: errors.print(Text(text), soft_wrap=True))
    if not found:
        console.print(f"{Path(given).stem} was not up")
        _print_others(errors)
        return OK
    asked = [thing for thing in found if thing.is_asked]
    if asked and not agreed and not _is_agreed(asked, errors):
        return BAD_USAGE
    problems = _end_all(found, console)
    if problems:
        return fail(errors, "\n".join(problems), NO_CLUSTER)
    console.print(f"{Path(given).stem} is down")
    return OK


def _is_agreed(asked: Sequence[ToEnd], errors: Console) -> bool:
    """Returns whether the user confirms; False without a terminal.

    Raises KeyboardInterrupt when the user declines.
    """
    errors.print(Text("launch down ends:"))
    for thing in asked:
        errors.print(Text(f"  {thing}"), soft_wrap=True)
    if not sys.stdin.isatty():
        fail(errors, "nothing is ended: say --yes, or type this on a terminal", BAD_USAGE)
        return False
    if not Confirm.ask("go on?", default=False, console=errors):
        raise KeyboardInterrupt
    return True


def _end_all(found: Sequence[ToEnd], console: Console) -> list[str]:
    """Ends everything and returns the problems; a failure does not keep the rest from ending."""
    problems = []
    for thing in found:
        try:
            with console.status(f"ending {thing.name}"):
                said = thing.end(console)
        except HostError as error:
            problems.append(f"{thing.name}: {error}")
            continue
        console.print(Text(said), soft_wrap=True)
    return problems


def _print_others(errors: Console) -> None:
    if lines := list(held_lines()):
        errors.print(Text("held, of other clusters:"))
        for line in lines:
            errors.print(Text(f"  {line}"), soft_wrap=True)
