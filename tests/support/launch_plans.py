"""A small launch, planned as the command line plans it."""

from pathlib import Path

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.planning.command import CommandLaunch
from launcher.planning.planner import TrainingLaunch, make_launch
from trainer.contract.config.command import load_job

JOB = """\
name: small
steps: 2
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: stdlib, seq_len: 16, global_batch: 4}
"""


COMMAND_JOB = """\
name: any
command: [python, my_script.py]
"""


def small_launch(folder: Path, cluster: str = "local") -> TrainingLaunch:
    launch = planned(folder / "small.yaml", JOB, cluster)
    assert isinstance(launch, TrainingLaunch)
    return launch


def command_launch(folder: Path, text: str = COMMAND_JOB, cluster: str = "local") -> CommandLaunch:
    launch = planned(folder / "any.yaml", text, cluster)
    assert isinstance(launch, CommandLaunch)
    return launch


def planned(path: Path, text: str, cluster: str) -> TrainingLaunch | CommandLaunch:
    path.write_text(text)
    words = ClusterRef(name=cluster)
    return make_launch(load_job(path), find_cluster(cluster), path.parent / "runs", words)
