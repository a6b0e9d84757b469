"""Hosts of a Ray cluster that runs already: joined, and left as it was.

This process becomes a driver of that cluster. All that it makes there, placement groups and agents,
is its job's: Ray ends it with this process, in whatever way that ends.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from launcher.cluster import Attach, is_address
from launcher.listener import Listener
from launcher.providers.errors import ProviderError
from launcher.providers.head_watch import unreachable
from launcher.providers.hosts import Hosts, Shared
from launcher.providers.ipv4 import check_ipv4

CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 30.0
"""Importing Ray takes a second; a busy machine takes ten of them."""
DEFAULT_TOKEN = Path("~/.ray/auth_token")
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
RAY_FIRST = "is Ray started there? (ray start --head, then ray start --address=... on other hosts)"


def check(settings: Attach) -> None:
    """Raises ProviderError for what can be known not to work before anything is made."""
    ray_variables(settings)
    _reachable_address(settings)


def is_open(settings: Attach) -> bool:
    """Whether anyone who reaches the cluster may run tasks there, and so read what it is sent.

    Raises ProviderError where nobody answers.
    """
    if settings.own:
        return False
    variables, address = ray_variables(settings), _reachable_address(settings)
    if variables == NO_TOKEN:
        return True
    anonymous = _Probe(address, NO_TOKEN)
    try:
        return anonymous.lets_in
    finally:
        anonymous.end()


def join(settings: Attach, listener: Listener) -> Hosts:
    """The cluster at that address, once it has let us in.

    Raises ProviderError with what was tried and what to do.
    """
    variables = ray_variables(settings)
    address = _reachable_address(settings)
    if settings.own and settings.token_path:
        return Hosts(address, address.rpartition(":")[0], Path(settings.token_path))
    driver_ip = _node_here(address, ask(address, variables, listener))
    return Hosts(address, driver_ip, None, shared=Shared(variables, settings.labels))


def ask(address: str, variables: Mapping[str, str], listener: Listener) -> dict[str, Any]:
    """Who is in a Ray cluster, see ray_probe.py; `variables`: what lets us in.

    Raises ProviderError where it does not let us in, or is of other versions.
    """
    listener.on_status(f"asking the Ray cluster at {address} who is there")
    anonymous = _Probe(address, NO_TOKEN)
    known = anonymous if variables == NO_TOKEN else _Probe(address, variables)
    try:
        answer = known.answer()
        _check_versions(address, answer)
        if anonymous.lets_in:
            _warn(listener, f"the Ray cluster at {address} takes orders from whoever reaches it: "
                  "it was started without a token (RAY_AUTH_MODE=token)")  # fmt: skip
    finally:
        known.end()
        anonymous.end()
    return answer


class _Probe:
    """Asks a cluster who is there, in a process of its own: Ray aborts one that it cannot serve."""

    def __init__(self, address: str, variables: Mapping[str, str]) -> None:
        self._address, self._with_token = address, variables != NO_TOKEN
        own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "launcher.providers.ray_probe", address],
            env={**own, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._said: dict[str, Any] | None = None

    def answer(self) -> dict[str, Any]:
        """What it found. Raises ProviderError where it was not let in, or nobody answered."""
        said = self._wait()
        if "error" not in said:
            return said
        if said["error"] == "AuthenticationError":
            raise ProviderError(self._refused())
        raise ProviderError(
            f"the Ray cluster at {self._address} gave no answer in {PROBE_TIMEOUT_S:.0f} s at "
            f"most ({said['error']}: {said['message']}): is it the address of a Ray head, and of "
            "the same Ray version as here?"
        )

    @property
    def lets_in(self) -> bool:
        return "error" not in self._wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _wait(self) -> dict[str, Any]:
        if self._said is None:
            self._said = self._read()
        return self._said

    def _read(self) -> dict[str, Any]:
        try:
            output, errors = self._process.communicate(timeout=PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.end()
            return {"error": "timeout", "message": "it did not answer"}
        try:
            return json.loads(output.splitlines()[-1])
        except (ValueError, IndexError):
            last = (errors.strip().splitlines() or ["nothing was said"])[-1]
            return {"error": f"exit code {self._process.returncode}", "message": last}

    def _refused(self) -> str:
        head = f"the Ray cluster at {self._address} "
        if self._with_token:
            return head + "refused the token: it must be the one that its head was started with"
        return head + (
            "wants a token: name its file (provider.token_path), or set RAY_AUTH_TOKEN_PATH or "
            "RAY_AUTH_TOKEN"
        )


def ray_variables(settings: Attach) -> dict[str, str]:
    """What lets us in: the cluster file's token, else the one that Ray would find by itself.

    Raises ProviderError for a file that cannot be read or is empty.
    """
    if settings.token_path is None and os.environ.get("RAY_AUTH_TOKEN"):
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.environ["RAY_AUTH_TOKEN"]}
    named = settings.token_path or os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named or DEFAULT_TOKEN).expanduser().absolute()
    if named is None and not path.is_file():
        return dict(NO_TOKEN)
    where = "provider.token_path" if settings.token_path else "RAY_AUTH_TOKEN_PATH"
    try:
        empty = not path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ProviderError(f"{where}: the token cannot be read from {path}: {why}") from None
    if empty:
        raise ProviderError(f"{where}: {path} is empty: it must hold the cluster's token")
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _reachable_address(settings: Attach) -> str:
    """Raises ProviderError where there is no one address, or nobody listens there."""
    address = settings.address if settings.address != "auto" else _address_found()
    check_ipv4(address.rpartition(":")[0], "the Ray head")
    if why := unreachable(address, CONNECT_TIMEOUT_S):
        raise ProviderError(
            f"nobody answers at {address} ({why}; waited {CONNECT_TIMEOUT_S:.0f} s at most): "
            f"{RAY_FIRST}"
        )
    return address


def _address_found() -> str:
    """Ray's own variable's, or of the one cluster that this machine is a node of."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        if not is_address(named):
            raise ProviderError(f"RAY_ADDRESS: expected HOST:PORT of a Ray head, found {named!r}")
        return named
    found = sorted(_of_raylets("--gcs-address="))
    if len(found) == 1:
        return found[0]
    if found:
        raise ProviderError(
            f"provider.address: auto: this machine is a node of several Ray clusters; name one "
            f"of them: {', '.join(found)}"
        )
    raise ProviderError(f"provider.address: auto: no Ray runs on this machine: {RAY_FIRST}")


def _of_raylets(flag: str) -> set[str]:
    """The values of a flag in the command lines of all raylets of this machine."""
    values = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or [""]
        if Path(words[0]).name == "raylet":
            values |= {word.removeprefix(flag) for word in words if word.startswith(flag)}
    return values


def _check_versions(address: str, answer: Mapping[str, Any]) -> None:
    here, there = answer["here"], answer["there"]
    if here != there:
        raise ProviderError(
            f"the Ray cluster at {address} runs {_versions(there)}, this command "
            f"{_versions(here)}: they must be the same. Start Ray from this environment, or "
            "install its versions here"
        )


def _versions(of: Mapping[str, str]) -> str:
    return f"Ray {of['ray']} on Python {of['python']}"


def _node_here(address: str, answer: Mapping[str, Any]) -> str:
    """The address of this machine's node: the head, where it is one of several here."""
    ours = _of_raylets("--node_id=")
    here = [node for node in answer["nodes"] if node["id"] in ours]
    if not here:
        there = ", ".join(node["address"] for node in answer["nodes"])
        raise ProviderError(
            f"this machine is no node of the Ray cluster at {address}: type the command on one "
            f"of its nodes ({there})"
        )
    return min(here, key=lambda node: not node["is_head"])["address"]


def _warn(listener: Listener, text: str) -> None:
    listener.on_event({"event": "warning", "kind": "cluster", "message": text})
