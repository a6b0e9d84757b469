"""The user's cache folders, and the identity of a run folder."""

import errno
import os
import secrets
from pathlib import Path

from trainer.contract.config.loader import ConfigError
from trainer.contract.storage.compiled_programs import user_cache_folder

REMEDY = "Set XDG_CACHE_HOME to a folder that every host can write to"
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)


def cache_folder() -> Path:
    """Returns `$XDG_CACHE_HOME/slipway`, by default `~/.cache/slipway`, without creating it.

    Raises ConfigError for a user without a home.
    """
    try:
        return user_cache_folder(os.environ)
    except RuntimeError:
        raise ConfigError(
            [f"HOME is not set, and this user has no home folder. {REMEDY}"]
        ) from None


def make_cache_folder(name: str) -> Path:
    """Creates a folder in the cache. Raises ConfigError when it cannot be created or written."""
    folder = cache_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise ConfigError([f"cannot write to {folder}: {error.strerror}. {REMEDY}"]) from None
    return folder


def run_id(run_dir: Path) -> str:
    """Returns a run's random id, created if missing: a folder's name does not identify a run."""
    path = run_dir / "run_id"
    if not path.exists():
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(secrets.token_hex(16), encoding="utf-8")
        temporary.replace(path)
    return path.read_text(encoding="utf-8").strip()
