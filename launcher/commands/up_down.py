"""What `launch up` and `launch down` do: a simulated cluster that outlives the command."""

from rich.console import Console

from launcher.cluster import Cluster
from launcher.display import count
from launcher.exits import BAD_USAGE, INTERRUPTED, NO_CLUSTER, OK, fail
from launcher.interrupts import ending_on_signals
from launcher.providers import local, memory, warm
from launcher.providers.errors import ProviderError


def keep_warm(name: str, cluster: Cluster, simulate_hosts: int | None) -> int:
    """Start a simulated cluster that outlives this command; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    try:
        world = cluster.world(cluster.provider.kind != "local", simulate_hosts)
    except ValueError as error:
        return fail(errors, f"--simulate-hosts {simulate_hosts}: {error}", BAD_USAGE)
    settings = local.settings_of(cluster)
    fingerprint = warm.settings_of(world, settings)
    try:
        if warm.find(name, fingerprint):
            console.print(f"{name} is up already")
            return OK
        memory.refuse_if_too_large(world, state_bytes=0)
        with console.status(f"starting {count(world.processes, 'host')}"), ending_on_signals():
            warm.keep(name, fingerprint, local.start(world, settings))
    except ProviderError as error:
        return fail(errors, str(error), NO_CLUSTER)
    except KeyboardInterrupt:
        return fail(errors, "interrupted; everything is ended", INTERRUPTED)
    console.print(
        f"{name} is up: {count(world.processes, 'host')}. End it with `launch down {name}`"
    )
    return OK


def end_warm(name: str) -> int:
    """End what `keep_warm` started; returns the exit code of `launch`."""
    console, errors = Console(), Console(stderr=True)
    try:
        ended = warm.end(name)
    except ProviderError as error:
        return fail(errors, str(error), NO_CLUSTER)
    console.print(f"{name} is down" if ended else f"{name} was not up")
    return OK
