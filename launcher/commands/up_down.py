"""What `launch up` and `launch down` do with clusters that outlive a command."""

from pathlib import Path

from rich.console import Console

from launcher.cluster import Cluster
from launcher.commands.cloud import give_up
from launcher.display import count
from launcher.exits import BAD_USAGE, INTERRUPTED, NO_CLUSTER, OK, fail
from launcher.interrupts import ending_on_signals
from launcher.providers import local, memory, warm
from launcher.providers.errors import ProviderError
from launcher.providers.gcp.pod import Pod, noted_pods


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


def end(name: str) -> int:
    """End what `keep_warm` started, or give slices back; returns the exit code of `launch`."""
    console, errors, stem = Console(), Console(stderr=True), Path(name).stem
    try:
        ended = [stem] if warm.end(stem) else []
        for folder, note in noted_pods():
            if Path(note.words.name).stem == stem:
                ended.append(note.resource_id)
                with console.status(f"giving {note.resource_id} back"):
                    give_up(Pod(folder, note))
                console.print(f"{note.resource_id} is given back", highlight=False)
    except ProviderError as error:
        return fail(errors, str(error), NO_CLUSTER)
    console.print(f"{stem} is down" if ended else f"{stem} was not up")
    return OK
