"""What a Ray cluster of our own has on a machine: a private folder, a secret, a port."""

import secrets
import socket
import tempfile
from pathlib import Path

from launcher.core.errors import ProviderError
from launcher.core.ipv4 import check_ipv4
from launcher.providers.ray.abandoned import remove_abandoned

LONGEST_TEMPORARY_FOLDER = 16
PREFIX = "slipway-"


def private_folder() -> Path:
    """Not there yet. Ray's sockets are 80 characters below it, and a socket's path holds 107.

    Folders that have lost their owners are removed on the way.
    """
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= LONGEST_TEMPORARY_FOLDER else Path("/tmp")
    remove_abandoned(base, PREFIX)
    return base / f"{PREFIX}{secrets.token_hex(4)}"


def new_token() -> str:
    """What lets a process into the cluster of one launch."""
    return secrets.token_hex(32)


def write_token(folder: Path, token: str) -> Path:
    """Readable by its user only."""
    path = folder / "token"
    path.touch(0o600, exist_ok=False)
    path.write_text(token)
    return path


def free_port(ip: str) -> int:
    """A port below the ephemeral range, so that no outgoing connection can take it meanwhile.

    Raises ProviderError where none is free, or the address is one of IPv6.
    """
    check_ipv4(ip, "this host")
    for _ in range(100):
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            try:
                probe.bind((ip, port))
                return port
            except OSError:
                continue
    raise ProviderError(f"no free port between 20000 and 30000 at {ip}")
