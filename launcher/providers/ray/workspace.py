"""Resources of Slipway's own Ray cluster on a machine: a private folder, a token, a port."""

import secrets
import socket
import tempfile
from pathlib import Path

from launcher.core.errors import HostError
from launcher.core.ipv4 import check_ipv4
from launcher.providers.ray.abandoned import remove_abandoned

LONGEST_TEMPORARY_FOLDER = 16
PREFIX = "slipway-"


def private_folder() -> Path:
    """Returns the path of a new private folder, which does not exist yet.

    Ray's sockets add 80 characters to it, and a socket's path holds 107: see unix(7). Also removes
    abandoned folders.
    """
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= LONGEST_TEMPORARY_FOLDER else Path("/tmp")
    remove_abandoned(base, PREFIX)
    return base / f"{PREFIX}{secrets.token_hex(4)}"


def new_token() -> str:
    """Returns the token that authenticates processes to the cluster of one launch."""
    return secrets.token_hex(32)


def write_token(folder: Path, token: str) -> Path:
    """Writes the token to a file that only its user can read, and returns its path."""
    path = folder / "token"
    path.touch(0o600, exist_ok=False)
    path.write_text(token)
    return path


def token_variables(path: Path) -> dict[str, str]:
    """Returns the variables with which Ray authenticates by the token in that file."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def free_port(ip: str) -> int:
    """Returns a port below the ephemeral range, so that no outgoing connection can take it.

    Raises HostError when no port is free, or the address is an IPv6 address.
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
    raise HostError(f"no free port between 20000 and 30000 at {ip}")
