"""Paths of checkpoints and data: in folders, or on Google Cloud Storage."""

import importlib.util
from typing import Any

from trainer.contract.config.loader import ConfigError

AnyPath = Any
"""A pathlib.Path, or an etils.epath.Path, which type checkers do not accept as a pathlib.Path."""

GCS = "gs://"


def to_path(text: str) -> AnyPath:
    """Returns a path or a gs:// URL as an epath.Path; `~` is the home of this process's user.

    Raises ConfigError for a URL that this machine cannot reach.
    """
    # Imported late, so that commands without paths start faster.
    from etils import epath

    if not is_url(text):
        return epath.Path(text).expanduser().resolve()
    if not text.startswith(GCS):
        raise ConfigError([f"{text}: unsupported URL. Use a folder or {GCS}BUCKET/FOLDER"])
    if not text.removeprefix(GCS).split("/")[0]:
        raise ConfigError([f"{text} has no bucket. Use {GCS}BUCKET/FOLDER"])
    if importlib.util.find_spec("gcsfs") is None:
        raise ConfigError(
            [
                f"{text} needs gcsfs, which is not installed on this machine. Install it with "
                "`pip install 'slipway[gcs]'` or `uv sync --extra gcs`"
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
