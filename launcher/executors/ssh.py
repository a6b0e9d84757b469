"""A run on remote hosts, from provisioning the hosts to copying the run's folder here."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.cluster.schema import Cluster, ClusterRef, Ssh
from launcher.core.errors import HostError
from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, NO_CLUSTER, OK, fail
from launcher.core.files import replace_file
from launcher.core.printable import plain
from launcher.core.signals import ending_on_signals
from launcher.executors.options import OutputOptions
from launcher.planning import job_secrets
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray.host_protocol import RunOrder
from launcher.providers.ssh.connection import SSH_FAILED, hosts_of
from launcher.providers.ssh.provision import provision
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.providers.ssh.sessions import Sessions
from launcher.providers.ssh.uv_binary import find_uv
from launcher.runs import registry
from launcher.runs.directory import RunFolderError, run_word
from launcher.runs.remote import RemoteRunHandle
from trainer.contract.config.job import BaseJob
from trainer.contract.config.loader import ConfigError, dump
from trainer.contract.storage.cache_dirs import run_id

LAST_WORD_TIMEOUT_S = 60.0
"""Seconds between the end of a run, as `launch attach` sees it, and that of its process."""
ALIVE_S = 2.0
"""Seconds in which a run may report its end after the user detached or the connection was lost."""
LOOK_S = 1.0


@dataclass(frozen=True)
class RunRequest:
    """A request to start or resume a run on its hosts."""

    job: BaseJob
    text: str | None
    """The job of a new run as YAML; None for a run that resumes."""
    overrides: Sequence[str] = ()
    fresh: bool = False


class HostsLostError(HostError):
    """The hosts were taken away while the run was on them."""


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


class SshExecutor:
    """Drives one run on existing hosts, up to its copy in `folder`."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        cluster_name: str,
        words: ClusterRef,
        shown: OutputOptions,
    ) -> None:
        self.has_begun = False
        self.is_there = False
        """Whether the run may still be on its hosts, as far as this machine knows."""
        self.folder, self.cluster, self.words, self.shown = folder, cluster, words, shown
        self._cluster_name, self._world = cluster_name, cluster.world(simulated=False)

    def report_errors(self, go: Callable[[], int]) -> int:
        """Calls `go`, prints any error of it, and returns the exit code."""
        errors, where = Console(stderr=True), ""
        try:
            with ending_on_signals():
                return go()
        except (ConfigError, RunFolderError) as error:
            return fail(errors, str(error), BAD_USAGE)
        except (HostError, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            message = "interrupted" if interrupted else str(error)
            if self.has_begun:
                where = f". The run is not lost: launch status {run_word(self.folder)}"
            elif interrupted:
                where = "; everything is ended"
            return fail(errors, message + where, INTERRUPTED if interrupted else NO_CLUSTER)

    def submit(self, begin: RunRequest, settings: Ssh, watch: HostMonitor) -> int:
        """Starts the run on existing hosts and displays it; returns the exit code of `launch`.

        Raises HostError, ConfigError, and KeyboardInterrupt before the run has begun. Raises
        HostsLostError when `watch` reports that the hosts are gone.
        """
        tell, hosts, world = self.tell, hosts_of(settings), self._world
        code = pack(Path.cwd())
        provisioned = provision(hosts, code, find_uv(), world.platform, tell, begin.job.storage)
        run = RemoteRun.of(self.folder, settings, provisioned, self.words)
        if begin.text is None and watch.takes_the_run_along:
            run.send(self.folder)
        work = self.run_order(begin, run.runs, job_secrets.values(begin.job))
        with Sessions(hosts, provisioned) as sessions:
            sessions.start(world, tell)
            tell(f"starting the run on {run.head.name}")
            answer = sessions.begin(work)
            if "ended" in answer:
                self._console.print(Text(plain(str(answer["output"]).strip())), soft_wrap=True)
                return answer["ended"]
            self.has_begun = self.is_there = True
            run.write(self.folder)
            self.record(begin)
            watch.began()
            if not self.shown.detached:
                return self._follow(run, sessions, watch)
        self.tell_where(run)
        return run.launch("status", "-o", "json", terminal=False) if self.shown.as_json else OK

    def run_order(self, begin: RunRequest, runs: str, secrets: dict[str, str]) -> RunOrder:
        """Returns the request as an order for the head, where `runs` contains the run's folder."""
        return RunOrder(
            job=begin.text,
            secret_names=list(begin.job.secrets),
            secrets=secrets,
            overrides=list(begin.overrides),
            fresh=begin.fresh,
            cluster=self.cluster.model_dump(mode="json"),
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
        registry.note(self.folder, begin.job.secrets)

    def _follow(self, run: RemoteRun, sessions: Sessions, watch: HostMonitor) -> int:
        """Displays the run until it ends, then copies its folder. Ctrl-C only detaches."""
        said = "let go of the run"
        try:
            shown = self._show(run, watch)
            said = "the connection was lost" if shown == SSH_FAILED else ""
            let_go = shown in (INTERRUPTED, SSH_FAILED)
            ended = sessions.ended(ALIVE_S if let_go else LAST_WORD_TIMEOUT_S)
        except KeyboardInterrupt:
            shown, ended = INTERRUPTED, None
        code = ended["ended"] if ended else shown
        if code != OK and (ended or code != INTERRUPTED) and watch.are_lost():
            raise HostsLostError
        if ended is None:
            if said:
                self.tell(said)
            self.tell_where(run)
            return NO_CLUSTER if shown == SSH_FAILED else INTERRUPTED
        self.tell(f"copying the run's folder to {self.folder}")
        run.fetch(self.folder)
        self.is_there = False
        try:
            sessions.end()
        except HostError as error:
            self.tell(f"warning: {error}")
        return code

    def _show(self, run: RemoteRun, watch: HostMonitor) -> int:
        """Runs `launch attach` on the head, and returns its exit code."""
        words = ["attach", *(["-o", "json"] if self.shown.as_json else [])]
        with run.start(*words, terminal=self._console.is_terminal) as process:
            try:
                while True:
                    try:
                        return process.wait(LOOK_S)
                    except subprocess.TimeoutExpired:
                        watch.poll(run)
            except BaseException:
                process.kill()
                raise

    @property
    def _console(self) -> Console:
        return self.shown.console

    def tell(self, text: str) -> None:
        self._console.print(Text(plain(text)), soft_wrap=True)

    def tell_where(self, run: RemoteRunHandle) -> None:
        """Prints how to find the run again."""
        word = run_word(self.folder)
        self.tell(f"{run.name} runs on {run.head_name}, in {run.runs}/{run.name}")
        self.tell(f"  follow it                     launch attach {word}")
        self.tell(f"  see how it stands             launch status {word}")
        self.tell(f"  stop it, with a checkpoint    launch stop {word}")
