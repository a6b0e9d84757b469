"""Runs on remote hosts: the first host drives the run.

This machine provisions the hosts and starts Ray. Then `launch` starts on the head, where a lost
connection does not end it. This machine displays the run as `launch attach` does. At the end, it
copies the run's folder here, and the hosts keep only what the next launch can use.
"""

import shutil
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.cluster.schema import Cluster, ClusterRef, Ssh, find_cluster
from launcher.core.errors import HostError, InterruptError, error_of
from launcher.core.exit_codes import INTERRUPTED, OK
from launcher.core.files import replace_file
from launcher.core.printable import plain
from launcher.core.signals import ending_on_signals
from launcher.executors import new_secrets
from launcher.executors.base import Executor
from launcher.executors.follow import detached, print_follow_hints
from launcher.executors.handle import RunHandle
from launcher.executors.handles import handle_of
from launcher.executors.inspect_hosts import inspect_by_ssh
from launcher.executors.options import LaunchOptions
from launcher.gang.preflight import Seen
from launcher.planning import job_secrets
from launcher.planning.notify_targets import with_targets
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray.host_protocol import LaunchEnded, RunOrder
from launcher.providers.ssh.connection import SSH_FAILED, hosts_of
from launcher.providers.ssh.provision import provision
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.providers.ssh.sessions import Sessions
from launcher.providers.ssh.uv_binary import find_uv
from launcher.runs import registry
from launcher.runs.directory import RunDir
from launcher.runs.folder import run_word
from launcher.runs.new_folder import make_folder
from launcher.runs.remote import RemoteRunRecord
from launcher.runs.status import describe, read_status
from trainer.contract.config.command import load_job
from trainer.contract.config.job import BaseJob
from trainer.contract.config.loader import ConfigError, dump
from trainer.contract.config.yaml import dump_inline
from trainer.contract.storage import kept_programs
from trainer.contract.storage.cache_dirs import run_id

LAST_WORD_TIMEOUT_S = 60.0
"""Seconds between the end of a run, as `launch attach` sees it, and that of its process."""
ALIVE_S = 2.0
"""Seconds in which a run may report its end after the user detached or the connection was lost."""
POLL_INTERVAL_S = 1.0


@dataclass(frozen=True)
class RunRequest:
    """A request to start or resume a run on its hosts."""

    job: BaseJob
    text: str | None
    """The job of a new run as YAML; None for a run that resumes."""
    overrides: Sequence[str] = ()
    fresh: bool = False


class HostsLostError(HostError):
    """Raised when the platform preempted the hosts of a run that is not over."""


class HostMonitor:
    """Callbacks while a run is displayed. The base class, for permanent hosts, does nothing."""

    takes_the_run_along = False
    """Whether the folder of a resumed run is sent to the hosts, because they do not have it."""

    def began(self) -> None:
        """Called once the run has started on the hosts."""

    def poll(self, run: RemoteRun) -> None:
        """Called about every second. May raise HostsLostError."""

    def are_lost(self) -> bool:
        """Returns whether the hosts are gone for good."""
        return False


class RemoteSubmission:
    """One run on remote hosts, from its submission to its copy in `folder`."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        cluster_name: str,
        cluster_ref: ClusterRef,
        options: LaunchOptions,
    ) -> None:
        self.has_begun = False
        self.is_there = False
        """Whether the run may still be on its hosts, as far as this machine knows."""
        self.refusal_code: int | None = None
        """Exit code of `launch` on the head when it refused the run."""
        self.folder, self.cluster, self.options = folder, cluster, options
        self.cluster_ref = cluster_ref
        self._cluster_name, self._world = cluster_name, cluster.world(simulated=False)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Ends on signals, and adds to each error whether the run continues on its hosts.

        Raises InterruptError for Ctrl-C and signals.
        """
        try:
            with ending_on_signals():
                yield
        except HostError as error:
            error.hint = error.hint or self._where
            raise
        except KeyboardInterrupt:
            where = None if self.has_begun else "Everything has ended"
            raise InterruptError("interrupted", hint=self._where or where) from None

    @property
    def _where(self) -> str | None:
        name = run_word(self.folder)
        return f"The run is not lost: launch status {name}" if self.has_begun else None

    def submit(self, begin: RunRequest, settings: Ssh, watch: HostMonitor) -> int:
        """Starts the run on existing hosts and displays it; returns the exit code of `launch`.

        With `options.detach`, returns OK once the run has begun.

        Raises HostError, and KeyboardInterrupt before the run has begun; the error of `launch` on
        the head when it refuses the run; HostsLostError when `watch` reports that the hosts are
        gone; InterruptError when the user detaches.
        """
        hosts, world, report = hosts_of(settings), self._world, self.print
        code = pack(Path.cwd())
        provisioned = provision(hosts, code, find_uv(), world.platform, report, begin.job.storage)
        run = RemoteRun.of(self.folder, settings, provisioned, self.cluster_ref)
        if begin.text is None and watch.takes_the_run_along:
            run.send(self.folder)
        kept = kept_programs.store_of(self.folder)
        if begin.text is not None and self.options.hot and kept.is_dir():
            report(f"sending compiled programs to {run.head.name}")
            run.send_programs(kept)
        order = self.run_order(begin, run.runs, job_secrets.values(begin.job))
        with Sessions(hosts, provisioned) as sessions:
            sessions.start(world, report)
            report(f"starting the run on {run.head.name}")
            answer = sessions.begin(order)
            if isinstance(answer, LaunchEnded):
                self.refusal_code = answer.exit_code
                raise error_of(answer.exit_code, answer.output.strip())
            self.has_begun = self.is_there = True
            run.write(self.folder)
            self.record(begin)
            watch.began()
            if not self.options.detach:
                return self._follow(run, sessions, watch)
        self.print_hints(run)
        return OK

    def run_order(self, begin: RunRequest, runs: str, secrets: dict[str, str]) -> RunOrder:
        """Returns the request as an order for the head, where `runs` contains the run's folder."""
        return RunOrder(
            job=begin.text,
            secret_names=list(begin.job.secrets),
            secrets=secrets,
            overrides=list(begin.overrides),
            fresh=begin.fresh,
            hot=self.options.hot,
            cluster=self.cluster,
            cluster_name=self._cluster_name,
            runs=runs,
            name=self.folder.name,
            run_id=run_id(self.folder),
        )

    def record(self, begin: RunRequest) -> None:
        """Records the job that this machine sent, for a later `resume`.

        The hosts' copy of the job is never used.
        """
        replace_file(self.folder / "job.yaml", dump(begin.job))
        registry.register(self.folder, job_secrets.names_in_file(begin.job))

    def _follow(self, run: RemoteRun, sessions: Sessions, watch: HostMonitor) -> int:
        """Displays the run until it ends, then copies its folder. Ctrl-C only detaches."""
        try:
            shown = self._show(run, watch)
            has_left = shown in (INTERRUPTED, SSH_FAILED)
            ended = sessions.ended(ALIVE_S if has_left else LAST_WORD_TIMEOUT_S)
        except KeyboardInterrupt:
            shown, ended = INTERRUPTED, None
        code = ended.exit_code if ended else shown
        if code != OK and (ended or code != INTERRUPTED) and watch.are_lost():
            raise HostsLostError
        if ended is None:
            self.print_hints(run)
            if shown == SSH_FAILED:
                raise HostError("the connection was lost", run_dir=self.folder)
            raise detached(self.folder)
        self.print(f"copying the run's folder to {self.folder}")
        run.fetch(self.folder)
        self.is_there = False
        try:
            sessions.end()
        except HostError as error:
            self.print(f"warning: {error}")
        return code

    def _show(self, run: RemoteRun, watch: HostMonitor) -> int:
        """Runs `launch attach` on the head, and returns its exit code."""
        arguments = ["-o", "json"] if self.options.as_json else []
        with run.start("attach", *arguments, terminal=self._console.is_terminal) as process:
            try:
                while True:
                    try:
                        return process.wait(POLL_INTERVAL_S)
                    except subprocess.TimeoutExpired:
                        watch.poll(run)
            except BaseException:
                process.kill()
                raise

    @property
    def _console(self) -> Console:
        return self.options.console

    def print(self, text: str) -> None:
        """Prints a status line of this machine."""
        self._console.print(Text(plain(text)), soft_wrap=True)

    def print_hints(self, run: RemoteRunRecord) -> None:
        """Prints where the run is, and how to find it again."""
        where = f"{run.name} runs on {run.head_name}, in {run.runs}/{run.name}"
        print_follow_hints(self._console, self.folder, where)


class RemoteExecutor(Executor):
    """Starts runs that a remote host drives."""

    def submit(self, spec: LaunchSpec, options: LaunchOptions) -> RunHandle:
        folder, text = spec.run_dir, dump(with_targets(spec.job))
        submission = RemoteSubmission(
            folder, spec.cluster, spec.cluster_name, spec.cluster_ref, options
        )
        with submission.reporting():
            make_folder(folder, text, fresh=options.fresh)
            try:
                code = self._start(submission, RunRequest(spec.job, text, fresh=options.fresh))
            finally:
                if not submission.has_begun:
                    shutil.rmtree(folder)
        return _handle(submission, code)

    def resume(self, run: RunDir, cluster_ref: ClusterRef, options: LaunchOptions) -> RunHandle:
        """Resumes a run with this machine's copy of the job."""
        found = find_cluster(cluster_ref.name)
        submission = RemoteSubmission(
            run.folder, found.value, Path(found.source).stem, cluster_ref, options
        )
        with submission.reporting():
            job = load_job(run.folder / "job.yaml", options.overrides).value
            self._check_secrets(job, run.folder, options)
            targets = f"notify={dump_inline(with_targets(job).model_dump()['notify'])}"
            code = self._start(submission, RunRequest(job, None, [*options.overrides, targets]))
        return _handle(submission, code)

    def _check_secrets(self, job: BaseJob, folder: Path, options: LaunchOptions) -> None:
        """Raises ConfigError for secrets that are missing here, or that the user rejects."""
        new_secrets.confirm(job, folder, options.overrides)
        if problems := self.missing_secrets(job):
            raise ConfigError(problems)

    @abstractmethod
    def _start(self, submission: RemoteSubmission, begin: RunRequest) -> int:
        """Runs the job, as far as `options.detach` allows; returns the exit code of `launch`."""


class SshExecutor(RemoteExecutor):
    """Starts runs on the hosts that a cluster file names."""

    def __init__(self, settings: Ssh) -> None:
        self._settings = settings

    def _start(self, submission: RemoteSubmission, begin: RunRequest) -> int:
        return submission.submit(begin, self._settings, HostMonitor())

    def inspect_hosts(
        self, spec: LaunchSpec, on_status: Callable[[str], None]
    ) -> Mapping[int, Seen]:
        return inspect_by_ssh(spec, self._settings, on_status)


def _handle(submission: RemoteSubmission, code: int) -> RunHandle:
    """Returns the handle of a run. Raises the error of a run that ended with another code than 0.

    The display on the head has shown the reason already.
    """
    folder = submission.folder
    if code == OK:
        return handle_of(folder)
    if not submission.has_begun:
        raise error_of(code, f"{folder.name} was not started: see the reason above")
    raise error_of(code, describe(read_status(folder)), run_dir=folder)
