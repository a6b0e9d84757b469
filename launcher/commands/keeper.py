"""Gives a pod back: `python -m launcher.commands.keeper POD_FOLDER`, beside every pod.

While another process looks after the pod, it waits. Then it does what is left to do: a pod without
a run goes at once, one with a run when that is over (a preempted one is replaced), and one that is
kept when its time is over.
"""

import os
import signal
import sys
import time
from pathlib import Path

from launcher.commands.cloud import ASK_S, OnPods, PodWatch, leave
from launcher.commands.remotely import Begin, HostsLostError, Remotely
from launcher.commands.shown import Shown
from launcher.files import lock
from launcher.providers.errors import ProviderError
from launcher.providers.gcp.pod import Pod, read_note
from launcher.providers.ssh.remote_run import RemoteRun
from launcher.record.snapshot import take
from trainer.spec.command import load_job

LOOK_S, AGAIN_S = 1.0, 60.0


def main() -> int:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    with (folder / "lock").open("w") as file:
        while read_note(folder) and not lock(file):
            time.sleep(LOOK_S)
        while note := read_note(folder):
            try:
                _keep(Pod(folder, note))
            except ProviderError as error:
                _say(str(error))
                _wait(folder)
    return 0


def _wait(folder: Path) -> None:
    """For a while, or until it is given back."""
    until = time.monotonic() + AGAIN_S
    while read_note(folder) and time.monotonic() < until:
        time.sleep(LOOK_S)


def _keep(pod: Pod) -> None:
    """What is to be done now that nobody else looks after it."""
    note = pod.note
    if note.stage == "running":
        _see_to_run(pod)
    elif note.stage == "kept" and note.delete_at and time.time() < note.delete_at:
        time.sleep(LOOK_S)
    else:
        pod.give_back()


def _see_to_run(pod: Pod) -> None:
    """Until it is over, or its hosts are lost."""
    folder, watch = Path(pod.note.run), PodWatch(pod)
    if run := RemoteRun.read(folder):
        try:
            while not run.is_over():
                watch.look(run)
                time.sleep(ASK_S)
            run.bring_home(folder)
        except (ProviderError, HostsLostError):
            if not watch.are_lost():
                raise
            _replace(pod, run, watch)
            return
    leave(pod, take(folder).exit_code, _say)


def _replace(pod: Pod, run: RemoteRun, watch: PodWatch) -> None:
    """The run goes on elsewhere, with a pod that has a keeper of its own."""
    folder = Path(pod.note.run)
    watch.bring_home(folder)
    pod.give_back()
    if Path(run.launched_in).is_dir():
        os.chdir(run.launched_in)
    shown = Shown(detached=True, as_json=False, agreed=True)
    words, cluster = pod.note.words, pod.note.cluster
    remotely = Remotely(folder, cluster, Path(words.name).stem, words, shown)
    remotely.has_begun = True
    begin = Begin(load_job(folder / "job.yaml").value, None)
    remotely.told(lambda: OnPods(remotely, losses=pod.note.losses).replaced(begin))


def _say(text: str) -> None:
    print(f"{time.ctime()}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
