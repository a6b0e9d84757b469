"""Runs JAX training jobs on many hosts: plan a job, run it, find it again, resume it.

The names of `__all__` are stable. They load when they are first used, so that `launch --help` and
`import launcher` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.api import find_run, list_runs, plan, resume, run
    from launcher.cluster.schema import Cluster
    from launcher.core.errors import SlipwayError
    from launcher.executors.handle import RunHandle
    from launcher.planning.spec import LaunchSpec
    from launcher.runs.goodput import Goodput
    from launcher.runs.status import RunStatus

__all__ = [
    "Cluster",
    "Goodput",
    "LaunchSpec",
    "RunHandle",
    "RunStatus",
    "SlipwayError",
    "find_run",
    "list_runs",
    "plan",
    "resume",
    "run",
]

_MODULES = {
    "Cluster": "launcher.cluster.schema",
    "Goodput": "launcher.runs.goodput",
    "LaunchSpec": "launcher.planning.spec",
    "RunHandle": "launcher.executors.handle",
    "RunStatus": "launcher.runs.status",
    "SlipwayError": "launcher.core.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "launcher.api")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
