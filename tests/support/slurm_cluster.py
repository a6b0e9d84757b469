"""A real Slurm on this machine: munged, a controller, and a slurmd for every node."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import wait_until

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SelectType=select/linear
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_min_interval=100000,requeue_delay=1
KillWait=20
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=9 MaxTime=INFINITE State=UP
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel")
NEEDED = os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))
WHY_NOT = "needs root and Debian's slurm-wlm and munge"
STARTED_S = 60.0


@contextmanager
def slurm(folder: Path, names: list[str]) -> Iterator[dict[str, str]]:
    """With these nodes, each at an address of its own; gives the environment of its commands."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    conf = folder / "slurm.conf"
    base = f"127.{16 + secrets.randbelow(224)}.{secrets.randbelow(256)}"
    nodes = "".join(
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr={base}.{10 + number} "
        f"Port={_free_port()} CPUs=2 State=UNKNOWN\n"
        for number, name in enumerate(names)
    )
    conf.write_text(
        SLURM_CONF.format(folder=folder, host=socket.gethostname(), port=_free_port(), nodes=nodes)
    )
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> None:
        with (folder / f"{Path(words[0]).name}.out").open("ab") as log:
            started.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))

    try:
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        start(
            "munged", "--foreground", "--force", f"--key-file={key}",
            f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
        )  # fmt: skip
        wait_until((folder / "munge.socket").exists, STARTED_S)
        start("slurmctld", "-D", "-c", "-f", str(conf))
        for name in names:
            start("slurmd", "-D", "-N", name, "-f", str(conf))
        wait_until(lambda: _idle(environment) == len(names), STARTED_S)
        yield environment
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(environment: dict[str, str]) -> int:
    listed = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%N %t", "-p", "low"],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    return sum(line.endswith(" idle") for line in listed.stdout.splitlines())


def _free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return listener.getsockname()[1]
