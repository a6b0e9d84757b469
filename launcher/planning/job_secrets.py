"""Variables of the launching user that a run needs. Only their names are stored."""

import os
import re
from collections.abc import Collection, Sequence

from launcher.planning.notify_targets import targets_of
from trainer.contract.config.job import BaseJob
from trainer.contract.config.notify import AnyTarget

SHOWN = "(secret)"
"""Text shown in place of a value."""
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|KEY|KEY_ID)$", re.I)
"""Pattern for the end of a variable's name that marks its value as a secret."""


def names(job: BaseJob) -> list[str]:
    """Returns the names of all variables that a run needs: on its hosts, and for notifications.

    Raises ConfigError when the user's configuration file has problems.
    """
    return _names(job, targets_of(job))


def names_in_file(job: BaseJob) -> list[str]:
    """Returns the names in the job itself, without those in the user's configuration file."""
    return _names(job, job.notify or ())


def values(job: BaseJob) -> dict[str, str]:
    """Returns all variables that are set on this machine, by name."""
    return {name: os.environ[name] for name in names(job) if name in os.environ}


def host_values(job: BaseJob) -> dict[str, str]:
    """Returns the variables of the programs on the hosts, as far as they are set, by name."""
    return {name: os.environ[name] for name in job.secrets if name in os.environ}


def missing(job: BaseJob) -> list[str]:
    """Returns a problem for each variable that is not set."""
    return [
        f"{'secrets' if name in job.secrets else 'notify'}: the environment variable {name} is not "
        f"set. Export it with {name}=..., or remove it from the {_where(job, name)}"
        for name in names(job)
        if name not in os.environ
    ]


def without_secrets(secrets: Collection[str]) -> dict[str, str]:
    """Returns this process's environment without the named secrets and all that look like one."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in secrets and not SECRET.search(name)
    }


def _names(job: BaseJob, targets: Sequence[AnyTarget]) -> list[str]:
    of_targets = [name for target in targets for name in target.secret_names]
    return list(dict.fromkeys([*job.secrets, *of_targets]))


def _where(job: BaseJob, name: str) -> str:
    return "job" if name in names_in_file(job) else "configuration file"
