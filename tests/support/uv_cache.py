"""Where uv keeps what it has downloaded."""

import os
from pathlib import Path


def uv_cache() -> str:
    """Downloads are shared with other environments; what is installed is not."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    return os.environ.get("UV_CACHE_DIR", str(default))
