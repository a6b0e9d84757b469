"""A run that is a job of a Ray cluster: its record on this machine, and requests about it."""

import base64
import io
import tarfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from pydantic import computed_field

from launcher.cluster.attach import Attach
from launcher.cluster.schema import ClusterRef
from launcher.core.errors import HostError, UnconfirmedError, UnreachableError
from launcher.core.exit_codes import INTERRUPTED
from launcher.core.messages import Message
from launcher.core.printable import plain
from launcher.providers.ray.code_bundle import Code
from launcher.providers.ray.host_protocol import RunOrder
from launcher.providers.ray_jobs.client import JobInfo, JobsApi, JobSubmission, RuntimeEnv
from launcher.providers.ray_jobs.entrypoint import BEGINS, FOLDER
from launcher.providers.ray_jobs.order import CommandOrder, JobOrder, pack
from launcher.runs.fetched_files import UnpackError, unpack
from launcher.runs.remote import RemoteRunRecord, runs_below

BASE = "~/.cache/slipway"
"""Folder of runs on the head."""
MODULE = "launcher.providers.ray_jobs.entrypoint"
OVER = ("SUCCEEDED", "FAILED", "STOPPED")
ENDING_S = 3600
"""Seconds until Ray kills a job after a stop request; `launch` ends its programs sooner."""
POLL_INTERVAL_S, POLL_SHARE = 0.5, 10
"""Minimum wait in seconds, and as a multiple of the last read: the API returns whole logs."""
LOST_S = 60.0
"""Seconds without an answer after which the cluster counts as lost."""
TAIL_LINES = 10
FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date of an entry in a ZIP file."""


class RayJob(RemoteRunRecord):
    """The record of a run on a cluster that is reached only over HTTP."""

    settings: Attach
    submission_id: str
    package: str
    """Name of the code package on the cluster."""
    below: str
    """Working directory of the command, relative to the code's root."""
    is_accepted: bool = False
    """Whether the cluster has confirmed the job: the record is written before submission."""

    @classmethod
    def of(cls, folder: Path, settings: Attach, code: Code, cluster_ref: ClusterRef) -> Self:
        """Returns the record of a run whose copy is to be in `folder`."""
        return cls(
            settings=settings,
            name=folder.name,
            runs=runs_below(BASE, folder),
            submission_id=_new_id(folder.name),
            package=f"_ray_pkg_slipway_{code.sha256[:16]}.zip",
            below=str(code.below),
            cluster_ref=cluster_ref,
            launched_in=str(Path.cwd()),
        )

    @computed_field
    @property
    def head_name(self) -> str:
        return self.settings.address

    def send(self, code: Code) -> None:
        """Uploads the code if the cluster does not have it yet. Raises HostError."""
        if not self._api.has_package(self.package):
            self._api.send_package(self.package, _zipped(code))

    def begin(self, order: RunOrder, folder: Path) -> None:
        """Submits the job, after writing its record to `folder`.

        Raises UnconfirmedError when the cluster may have accepted the job. After another HostError
        neither the job nor its record exists.
        """
        self.write(folder)
        provider = Attach(kind="attach", address="auto", labels=self.settings.labels)
        try:
            self._submit(self.submission_id, JobOrder(self.below, order, provider))
        except UnconfirmedError:
            raise
        except HostError:
            self.forget(folder)
            raise
        self._confirm(folder)

    def is_known(self, folder: Path) -> bool:
        """Returns whether the cluster has accepted the job, as confirmed before or queried now.

        Raises HostError when the cluster does not answer.
        """
        if not self.is_accepted and self._api.job(self.submission_id) is not None:
            self._confirm(folder)
        return self.is_accepted

    def _confirm(self, folder: Path) -> None:
        self.is_accepted = True
        self.write(folder)

    def stop(self) -> None:
        """Requests that the run saves and ends. Raises HostError."""
        self._api.stop(self.submission_id)

    def launch(self, verb: str, *args: str, terminal: bool) -> int:
        """Runs `launch` as a separate job; returns its exit code. Raises HostError."""
        del terminal  # a job has no terminal
        following = self._command(verb, *args)
        following.until_over(lambda line: print(plain(line)))
        return following.exit_code

    def lines(self, verb: str, *args: str) -> Iterator[str]:
        return self._command(verb, *args).lines()

    def _command(self, verb: str, *args: str) -> "Following":
        """Submits a command of `launch` as a job, and returns a reader of its log."""
        name = _new_id(verb)
        self._submit(name, CommandOrder(self.below, self.runs, [verb, self.name, *args]))
        return Following(self._api, name)

    def following(self) -> "Following":
        """Returns a reader of the run's log, from the beginning."""
        return Following(self._api, self.submission_id)

    def is_over(self) -> bool:
        job = self._api.job(self.submission_id)
        return job is None or job.status in OVER

    def fetch(self, folder: Path) -> None:
        following = self.following()
        following.until_over(lambda line: None)
        following.unpack(folder)
        self.localize(folder)

    def _submit(self, name: str, order: Message) -> None:
        """Submits a job under a name chosen here; retries while no answer arrives.

        Raises UnconfirmedError when no answer arrives in LOST_S, HostError when the job is refused.
        """
        job = JobSubmission(
            submission_id=name,
            entrypoint=f"exec python -m {MODULE} {pack(order)}",
            runtime_env=RuntimeEnv(
                working_dir=f"gcs://{self.package}",
                env_vars={"RAY_JOB_STOP_WAIT_TIME_S": str(ENDING_S)},
            ),
        )
        asked_at = time.monotonic()
        while not self._accepts(name, job):
            if time.monotonic() - asked_at > LOST_S:
                raise UnconfirmedError(
                    f"{self.settings.address} has not answered for {LOST_S:.0f} s and may have "
                    f"accepted the job {name}"
                )
            time.sleep(POLL_INTERVAL_S)

    def _accepts(self, name: str, job: JobSubmission) -> bool:
        """Submits the job; returns whether the cluster knows it, False when no answer arrives."""
        try:
            try:
                self._api.submit(job)
            except UnreachableError:
                return self._api.job(name) is not None
            except HostError:
                if self._api.job(name) is None:
                    raise
            return True
        except UnreachableError:
            return False

    @property
    def _api(self) -> JobsApi:
        return JobsApi(self.settings)


class Following:
    """Reads the log of a job, line by line."""

    def __init__(self, api: JobsApi, submission_id: str) -> None:
        self.has_begun = False
        """Whether the entrypoint of Slipway has printed its first line."""
        self._api, self._id = api, submission_id
        self._seen, self._packed = 0, ""
        self._job = JobInfo(status="")
        self._before: list[str] = []

    def until_over(self, on_line: Callable[[str], None]) -> None:
        """Passes new lines to `on_line` until the job is over; raises as `lines` does."""
        for line in self.lines():
            on_line(line)

    def lines(self) -> Iterator[str]:
        """Yields new lines until the job is over.

        Raises HostError when the job is unknown or did not begin, or the cluster is silent.
        """
        answered_at = time.monotonic()
        while self._job.status not in OVER:
            began = time.monotonic()
            try:
                yield from self._read()
                answered_at = time.monotonic()
            except UnreachableError:
                if time.monotonic() - answered_at > LOST_S:
                    raise
            time.sleep(max(POLL_INTERVAL_S, POLL_SHARE * (time.monotonic() - began)))
        if not self.has_begun:
            tail = "\n".join(f"  {line}" for line in self._before[-TAIL_LINES:])
            why = self._job.message or "without a reason"
            raise HostError(f"the job did not start on {self._api.address}: {why}\n{tail}")

    @property
    def exit_code(self) -> int:
        """Exit code of the command; INTERRUPTED for a stopped job, which has none."""
        code = self._job.driver_exit_code
        return INTERRUPTED if code is None else code

    @property
    def has_folder(self) -> bool:
        """Whether the job has returned a run's folder."""
        return bool(self._packed)

    def unpack(self, folder: Path) -> None:
        """Writes the known files of the run's folder into a folder. Raises HostError."""
        try:
            unpack(io.BytesIO(base64.b64decode(self._packed, validate=True)), folder)
        except (UnpackError, ValueError) as error:
            raise HostError(
                f"the job {self._id} on {self._api.address} has ended without returning the "
                f"run's folder: {error}"
            ) from None

    def _read(self) -> list[str]:
        """Returns the lines that were printed since the last call."""
        job = self._api.job(self._id)  # before its log, so that the last lines are not missed
        if job is None:
            raise HostError(f"{self._api.address} no longer knows the job {self._id}")
        log = self._api.log(self._id)
        end = log.rfind("\n") + 1
        new, self._seen = log[self._seen : end], end
        lines: list[str] = []
        for line in new.splitlines():
            if line.startswith(FOLDER):
                self._packed = line.removeprefix(FOLDER)
            elif self.has_begun:
                lines.append(line)
            elif line == BEGINS:
                self.has_begun = True
            else:
                self._before.append(line)
        self._job = job
        return lines


def check(settings: Attach) -> None:
    """Raises HostError when the cluster does not answer or denies access."""
    JobsApi(settings).version()


def _new_id(what: str) -> str:
    return f"slipway-{what}-{uuid.uuid4().hex[:8]}"


def _zipped(code: Code) -> bytes:
    """Returns the code as the zip file that Ray accepts; the same code gives the same bytes."""
    zipped = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(code.archive), mode="r:gz") as names,
        zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in names.getnames():
            if (path := code.root / name).is_file():
                archive.writestr(zipfile.ZipInfo(name, FIRST_DATE), path.read_bytes())
    return zipped.getvalue()
