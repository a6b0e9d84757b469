"""What `launch run` and `resume` do where hosts are reached by SSH: the run is on the first one.

Hosts are provided for and Ray is started from here; then `launch` starts on the head, where no lost
connection ends it, and what it does is shown here as `launch attach` shows it. In the end the run's
folder is copied here, and the hosts keep nothing but what the next launch can use.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher import job_secrets, registry
from launcher.cluster import Cluster, ClusterWords, Ssh, find_cluster
from launcher.commands.shown import Shown
from launcher.exits import BAD_USAGE, INTERRUPTED, NO_CLUSTER, OK, fail
from launcher.files import replace_file
from launcher.interrupts import ending_on_signals
from launcher.launch import Launch
from launcher.providers.code import pack
from launcher.providers.errors import ProviderError
from launcher.providers.ssh.connection import SSH_FAILED, hosts_of
from launcher.providers.ssh.provision import provision
from launcher.providers.ssh.remote_run import RemoteRun
from launcher.providers.ssh.sessions import Sessions
from launcher.providers.ssh.uv_binary import find_uv
from launcher.providers.ssh.work import Work
from launcher.runs import RunFolderError, make_folder, run_word
from trainer.spec.command import load_job
from trainer.spec.config import ConfigError, Loaded, dump
from trainer.spec.job import BaseJob

LAST_WORD_TIMEOUT_S = 60.0
"""Between the end of a run, as `launch attach` sees it, and that of its process."""
ALIVE_S = 2.0
"""A run whose display was let go of: has it ended all the same?"""


def run_remotely(launch: Launch, *, fresh: bool, shown: Shown) -> int:
    """Run a job on hosts that are reached by SSH; returns the exit code of `launch`."""
    folder, text = launch.run_dir, dump(launch.job)

    remotely = _Remotely(folder, launch.cluster, launch.cluster_name, launch.words, shown)

    def go() -> int:
        make_folder(folder, fresh=fresh)
        try:
            replace_file(folder / "job.yaml", text)
            return remotely.go(text, launch.job, fresh=fresh)
        finally:
            if not remotely.has_begun:
                shutil.rmtree(folder)

    return remotely.told(go)


def resume_remotely(
    folder: Path,
    overrides: Sequence[str],
    cluster: Loaded[Cluster],
    words: ClusterWords,
    shown: Shown,
) -> int:
    """Go on with a run there; what the head has of it counts. Returns the exit code of `launch`."""
    name = Path(cluster.source).stem
    remotely = _Remotely(folder, cluster.value, name, words, shown)

    def go() -> int:
        job = load_job(folder / "job.yaml", overrides).value
        if problems := job_secrets.missing(job):
            raise ConfigError(problems)
        return remotely.go(None, job, overrides=overrides)

    return remotely.told(go)


def remote_cluster(words: ClusterWords) -> Loaded[Cluster] | None:
    """Where a run's hosts are reached by SSH; else None. Raises ConfigError."""
    cluster = find_cluster(words.name)
    is_remote = isinstance(cluster.value.provider, Ssh) and not words.simulated
    return cluster if is_remote else None


def still_there(folder: Path) -> RemoteRun | None:
    """The run of a folder, where it is on another machine; one that is over is copied here first.

    Raises RunFolderError where its host cannot be asked.
    """
    run = RemoteRun.read(folder)
    try:
        if run is not None and run.is_over():
            run.bring_home(folder)
            return None
    except ProviderError as error:
        raise RunFolderError(f"{folder}: {error}") from None
    return run


class _Remotely:
    """One run, from the hosts as they are to its copy in `folder`."""

    def __init__(
        self, folder: Path, cluster: Cluster, cluster_name: str, words: ClusterWords, shown: Shown
    ) -> None:
        assert isinstance(cluster.provider, Ssh)
        self.has_begun = False
        self._folder, self._cluster, self._cluster_name = folder, cluster, cluster_name
        self._words, self._shown = words, shown
        self._settings, self._world = cluster.provider, cluster.world(simulated=False)
        self._hosts = hosts_of(self._settings)

    def told(self, go: Callable[[], int]) -> int:
        """`go`, with what went wrong told; its exit code."""
        errors, where = Console(stderr=True), ""
        try:
            with ending_on_signals():
                return go()
        except (ConfigError, RunFolderError) as error:
            return fail(errors, str(error), BAD_USAGE)
        except (ProviderError, KeyboardInterrupt) as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            message = "interrupted" if interrupted else str(error)
            if self.has_begun:
                where = f". The run is not lost: launch status {run_word(self._folder)}"
            elif interrupted:
                where = "; everything is ended"
            return fail(errors, message + where, INTERRUPTED if interrupted else NO_CLUSTER)

    def go(
        self, text: str | None, job: BaseJob, *, overrides: Sequence[str] = (), fresh: bool = False
    ) -> int:
        """`text`: of the job, where the run is a new one.

        Raises ProviderError, ConfigError, and KeyboardInterrupt before the run has begun.
        """
        tell, world = self._tell, self._world
        code = pack(Path.cwd())
        provisioned = provision(self._hosts, code, find_uv(), world.platform, tell)
        run = RemoteRun.of(self._folder, self._settings, provisioned, self._words)
        work = Work(
            job=text,
            secrets=job_secrets.values(job),
            overrides=list(overrides),
            fresh=fresh,
            cluster=self._cluster.model_dump(mode="json"),
            cluster_name=self._cluster_name,
            runs=run.runs,
            name=run.name,
        )
        with Sessions(self._hosts, provisioned) as sessions:
            sessions.start(world, tell)
            tell(f"starting the run on {run.head.name}")
            answer = sessions.begin(work)
            if "ended" in answer:
                self._console.print(Text(answer["output"].strip()), soft_wrap=True)
                return answer["ended"]
            self.has_begun = True
            run.note(self._folder)
            registry.note(self._folder)
            if not self._shown.detached:
                return self._follow(run, sessions)
        self._tell_where(run)
        return run.launch("status", "-o", "json", terminal=False) if self._shown.as_json else OK

    def _follow(self, run: RemoteRun, sessions: Sessions) -> int:
        """Show it until it ends; Ctrl-C only lets go of it."""
        words = ["attach", *(["-o", "json"] if self._shown.as_json else [])]
        said = "let go of the run"
        try:
            shown = run.launch(*words, terminal=self._console.is_terminal)
            said = "the connection was lost" if shown == SSH_FAILED else ""
            let_go = shown in (INTERRUPTED, SSH_FAILED)
            ended = sessions.ended(ALIVE_S if let_go else LAST_WORD_TIMEOUT_S)
        except KeyboardInterrupt:
            shown, ended = INTERRUPTED, None
        if ended is None:
            if said:
                self._tell(said)
            self._tell_where(run)
            return NO_CLUSTER if shown == SSH_FAILED else INTERRUPTED
        self._tell(f"copying the run's folder to {self._folder}")
        run.bring_home(self._folder)
        try:
            sessions.end()
        except ProviderError as error:
            self._tell(f"warning: {error}")
        return ended["ended"]

    @property
    def _console(self) -> Console:
        return self._shown.console

    def _tell(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _tell_where(self, run: RemoteRun) -> None:
        word = run_word(self._folder)
        self._tell(f"{run.name} runs on {run.head.name}, in {run.runs}/{run.name}")
        self._tell(f"  follow it                     launch attach {word}")
        self._tell(f"  see how it stands             launch status {word}")
        self._tell(f"  stop it, with a checkpoint    launch stop {word}")
