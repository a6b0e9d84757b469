"""A run whose folder is on a machine that is reached by SSH."""

import io
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import computed_field

from launcher.cluster.schema import ClusterRef
from launcher.cluster.ssh import Ssh
from launcher.core.errors import HostError
from launcher.providers.ssh.connection import SSH_FAILED, Host, hosts_of
from launcher.providers.ssh.parallel import everywhere
from launcher.providers.ssh.provision import Provisioned, shell
from launcher.runs.folder import REMOTE
from launcher.runs.remote import NOT_FETCHED, RemoteRunRecord, runs_below
from launcher.runs.status import PrintedStatus
from trainer.contract.storage import kept_programs

ASK_TIMEOUT_S, COPY_TIMEOUT_S = 60.0, 600.0


class RemoteRun(RemoteRunRecord):
    """The location of a run, and the `launch` commands on its head."""

    settings: Ssh
    environment: Provisioned

    @classmethod
    def of(
        cls, folder: Path, settings: Ssh, provisioned: Provisioned, cluster_ref: ClusterRef
    ) -> Self:
        """Returns the handle of a run whose local copy will be in `folder`."""
        return cls(
            settings=settings,
            name=folder.name,
            runs=runs_below(str(provisioned.base), folder),
            environment=provisioned,
            cluster_ref=cluster_ref,
            launched_in=str(Path.cwd()),
        )

    @computed_field
    @property
    def head_name(self) -> str:
        return self.head.name

    @property
    def head(self) -> Host:
        return hosts_of(self.settings)[0]

    def launch(self, verb: str, *args: str, terminal: bool) -> int:
        """Runs `launch` on the head and returns its exit code.

        Returns SSH_FAILED when the connection cannot be made or is lost.
        """
        with self.start(verb, *args, terminal=terminal) as process:
            return process.wait()

    def start(self, verb: str, *args: str, terminal: bool) -> subprocess.Popen[bytes]:
        """Starts the command of `launch`, without waiting for its end."""
        command = self._command(verb, *args)
        return subprocess.Popen(self.head.ssh_command(command, terminal=terminal))

    def lines(self, verb: str, *args: str) -> Iterator[str]:
        with subprocess.Popen(
            self.head.ssh_command(self._command(verb, *args)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield line.removesuffix("\n")
            finally:
                process.kill()
        if process.returncode == SSH_FAILED:
            raise HostError(f"{self.head_name}: the connection was lost")

    def is_over(self) -> bool:
        command = self._command("status", "-o", "json")
        (answer,) = everywhere([self.head], lambda _: self.head.run(command, ASK_TIMEOUT_S))
        return not PrintedStatus.parse(answer, self.head_name).alive

    def fetch(self, folder: Path) -> None:
        self.copy(folder)
        self.localize(folder)

    def copy(self, folder: Path) -> None:
        """Copies the run's folder from the head, without its checkpoints.

        Raises HostError when that fails.
        """
        command = _packing(f"{self.runs}/{self.name}")
        everywhere([self.head], lambda _: self.head.fetch(command, folder, COPY_TIMEOUT_S))

    def send(self, folder: Path) -> None:
        """Sends a copy made by `copy` to a head that does not have it; the run resumes from it.

        Raises HostError when that fails.
        """
        self._send(folder, f"{self.runs}/{self.name}")

    def send_programs(self, kept: Path) -> None:
        """Sends compiled programs to the head, where a new run finds them.

        Raises HostError when that fails.
        """
        self._send(kept, str(kept_programs.store_of(Path(self.runs) / self.name)))

    def _send(self, folder: Path, there: str) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            for path in sorted(folder.iterdir()):
                if path.name not in (REMOTE, "checkpoints") and not path.name.startswith("."):
                    archive.add(path, path.name)
        command, data = _unpacking(there), packed.getvalue()
        everywhere([self.head], lambda _: self.head.run(command, COPY_TIMEOUT_S, data))

    def _command(self, verb: str, *args: str) -> str:
        """Returns a command that runs in the parent folder of `runs`, as on this machine.

        Further commands that it suggests are then valid on this machine.
        """
        folder = PurePosixPath(self.runs).parent
        return self.environment.command("launcher", verb, self.name, *args, folder=folder)


def _packing(folder: str) -> str:
    """Returns a command for a host's shell that prints a folder as a compressed tar file."""
    left_out = shlex.join(f"--exclude=./{name}" for name in NOT_FETCHED)
    return shell(f"cd {shlex.quote(folder)} && tar -czf - {left_out} .")


def _unpacking(folder: str) -> str:
    """Returns a command for a host's shell that unpacks a compressed tar file into a folder."""
    there = shlex.quote(folder)
    return shell(f"umask 077; mkdir -p {there} && cd {there} && tar -xzf -")
