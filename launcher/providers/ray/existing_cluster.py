"""Queries an existing Ray cluster for its nodes, with or without a token."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.cluster.attach import Attach
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.messages import MessageReader
from launcher.providers.ray.probe import ClusterAnswer, ProbeFailed
from launcher.providers.ray.workspace import token_variables
from trainer.contract.protocol.events import WarningEvent

PROBE_TIMEOUT_S = 30.0
"""Seconds for a probe: importing Ray takes 1 s, and 10 s on a busy machine."""

DEFAULT_TOKEN = Path("~/.ray/auth_token")

NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}


def query(address: str, variables: Mapping[str, str], listener: Listener) -> ClusterAnswer:
    """Returns the nodes and versions of a Ray cluster; `variables` give access.

    Raises HostError when the cluster denies access, does not answer or has other versions.
    """
    listener.on_status(f"querying the nodes of the Ray cluster at {address}")
    anonymous = Probe(address, NO_TOKEN)
    known = anonymous if variables == NO_TOKEN else Probe(address, variables)
    try:
        answer = known.answer()
        _check_versions(address, answer)
        if anonymous.lets_in:
            _warn(
                listener,
                f"the Ray cluster at {address} accepts unauthenticated commands. "
                "Start it with RAY_AUTH_MODE=token",
            )
    finally:
        known.end()
        anonymous.end()
    return answer


class Probe:
    """Queries a cluster from a separate process: Ray aborts a process that it cannot serve."""

    def __init__(self, address: str, variables: Mapping[str, str]) -> None:
        self._address, self._with_token = address, variables != NO_TOKEN
        own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "launcher.providers.ray.probe", address],
            env={**own, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._received: ClusterAnswer | ProbeFailed | None = None

    def answer(self) -> ClusterAnswer:
        """Returns the answer. Raises HostError when access is denied or no answer comes."""
        answer = self._wait()
        if isinstance(answer, ClusterAnswer):
            return answer
        if answer.error == "AuthenticationError":
            raise HostError(self._refused())
        raise HostError(
            f"no answer from the Ray cluster at {self._address} within {PROBE_TIMEOUT_S:.0f} s "
            f"({answer.error}: {answer.reason}). Check that the address is a Ray head's, and "
            "that its Ray version is the one of this machine"
        )

    @property
    def lets_in(self) -> bool:
        """Whether the cluster has answered."""
        return isinstance(self._wait(), ClusterAnswer)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def _wait(self) -> ClusterAnswer | ProbeFailed:
        if self._received is None:
            self._received = self._read()
        return self._received

    def _read(self) -> ClusterAnswer | ProbeFailed:
        try:
            output, errors = self._process.communicate(timeout=PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.end()
            return ProbeFailed("timeout", "it did not answer")
        reader = MessageReader(
            (ClusterAnswer, ProbeFailed), f"the probe of {self._address}", HostError
        )
        if answer := next(filter(None, map(reader.parse, output.splitlines())), None):
            return answer
        last = (errors.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        return ProbeFailed(f"exit code {self._process.returncode}", last)

    def _refused(self) -> str:
        head = f"the Ray cluster at {self._address} "
        if self._with_token:
            return head + "rejected the token. Use the token that its head was started with"
        return head + (
            "requires a token. Set provider.token_path to its file, or set RAY_AUTH_TOKEN_PATH or "
            "RAY_AUTH_TOKEN"
        )


def ray_variables(settings: Attach) -> dict[str, str]:
    """Returns the credentials: the cluster file's token, else the one that Ray itself would find.

    Raises HostError when the token file cannot be read or is empty.
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
        raise HostError(f"{where}: the token cannot be read from {path}: {why}") from None
    if empty:
        raise HostError(f"{where}: {path} is empty; it must contain the cluster's token")
    return token_variables(path)


def _check_versions(address: str, answer: ClusterAnswer) -> None:
    if answer.here != answer.there:
        raise HostError(
            f"the Ray cluster at {address} runs {answer.there}, and this command "
            f"{answer.here}. They must be equal: start Ray from this environment, or "
            "install the cluster's versions here"
        )


def _warn(listener: Listener, text: str) -> None:
    listener.on_event(WarningEvent(category="cluster", message=text))
