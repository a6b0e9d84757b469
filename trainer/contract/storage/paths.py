"""Paths of checkpoints and data: in folders, or on Google Cloud Storage."""

import importlib.util
from typing import Any

from trainer.contract.config.loader import ConfigError

AnyPath = Any
"""A pathlib.Path, or an etils.epath.Path, which type checkers do not accept as a pathlib.Path."""

GCS = "gs://"


def place(text: str) -> AnyPath:
    """Returns a path or a gs:// URL as an epath.Path; `~` is the home of this process's user.

    Raises ConfigError for a URL that this machine cannot reach.
    """
    # Imported late, so that commands without paths start faster.
    from etils import epath

    if not is_url(text):
        return epath.Path(text).expanduser().resolve()
    if not text.startswith(GCS):
        raise ConfigError([f"{text}: files are kept in folders and on {GCS}, nowhere else"])
    if not text.removeprefix(GCS).split("/")[0]:
        raise ConfigError([f"{text} names no bucket: {GCS}BUCKET/FOLDER"])
    if importlib.util.find_spec("gcsfs") is None:
        raise ConfigError(
            [
                f"{text} is reached through gcsfs, which is not installed here: "
                "pip install 'slipway[gcs]', or uv sync --extra gcs"
            ]
        )
    _never_remember_listings()
    return epath.Path(text)


def _never_remember_listings() -> None:
    """Disables gcsfs's cache of listings: tensorstore and other hosts write without updating it."""
    import fsspec.config

    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False


def is_url(path: AnyPath | str) -> bool:
    """Returns whether a path is on an object store: no folders or renames, and atomic writes."""
    return "://" in str(path)
