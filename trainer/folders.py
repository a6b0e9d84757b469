"""Where a user's caches are, and which run a folder is."""

import os
import secrets
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/slipway`, by default `~/.cache/slipway`; not made here."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipway"


def run_id(run_dir: Path) -> str:
    """The run's own random name, made where it has none: a folder's name is no identity."""
    path = run_dir / "run_id"
    if not path.exists():
        made = path.with_name(f".{path.name}")
        made.write_text(secrets.token_hex(16), encoding="utf-8")
        made.replace(path)
    return path.read_text(encoding="utf-8").strip()
