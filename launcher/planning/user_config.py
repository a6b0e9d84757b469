"""The user's configuration file: what holds for all of the user's runs."""

import os
from pathlib import Path

from pydantic import Field

from trainer.contract.config.base import Section
from trainer.contract.config.loader import load
from trainer.contract.config.notify import AnyTarget


class UserConfig(Section):
    """The content of the file."""

    notify: tuple[AnyTarget, ...] = Field(
        default=(),
        strict=False,
        description="Targets of notifications for jobs without their own `notify`.",
    )


def config_path() -> Path | None:
    """Returns the path of the file; None for a user without a home.

    Its place follows the XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "slipway" / "config.yaml"
    except RuntimeError:
        return None


def load_user_config() -> UserConfig:
    """Returns the content of the file, or the defaults when there is none.

    Raises ConfigError for a file with problems.
    """
    path = config_path()
    if path is None or not path.exists():
        return UserConfig()
    return load(path, UserConfig).value
