"""Compares saving and restoring with bare Orbax, `dd` and the size of the shards.

    python benchmarks/checkpoints.py [--mib 512] [--hosts 2] [--rounds 7] [--folder DIR]

Creates a state of about that size. Saves it alternately with Slipway's saver and with an
`ocp.AsyncCheckpointer` with default settings. Then restores it on that many hosts, each a new
process. Prints, as medians over the rounds with ratios:

- how long a save blocks the steps, Slipway's without its digest, and the digest's time
- bytes per second that the hosts restore together, with and without the check of the digest, beside
  `dd` of the same files; as root, both start with empty caches
- the peak memory of a restoring host beyond that of a process that only initialized JAX, beside
  the bytes of the shards that it restores (the worst round)
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MIB_PER_LAYER = 192
"""Three times 16.8 million numbers of 4 bytes: parameters and AdamW's moments."""
SAVES = 3
"""Saves of each kind per round: they block for milliseconds, which vary."""
CACHES = Path("/proc/sys/vm/drop_caches")
Numbers = dict[str, float]


def main() -> None:
    """Runs each part in separate processes, so that none uses another's memory."""
    options = _options()
    if options.part != "all":
        print(json.dumps(PARTS[options.part](options)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        options.folder = Path(folder)
        (saved,) = _start(options, "save")
        _print_saves(saved)
        base = max(part["peak"] for part in _start(options, "baseline"))
        rounds = [(_dd(options), _start(options, "restore")) for _ in range(options.rounds)]
        _print_restores(saved["bytes"], base, rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--hosts", type=int, default=2, help="that restore")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--part", choices=["all", *PARTS], default="all", help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(options: argparse.Namespace, part: str) -> list[Any]:
    """Runs a part on one process (save) or on all hosts, and returns what each printed."""
    hosts = 1 if part == "save" else options.hosts
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, __file__, "--part", part, "--folder", str(options.folder)]
    command += ["--mib", str(options.mib), "--rounds", str(options.rounds), "--hosts", str(hosts)]
    devices = options.hosts // hosts
    common = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(options.folder / "cache"),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "SLIPWAY_NUM_PROCESSES": str(hosts),
    }
    if part == "restore":
        _drop_caches()
    started = [
        subprocess.Popen(
            command, env={**common, "SLIPWAY_PROCESS_ID": str(host)}, stdout=subprocess.PIPE
        )
        for host in range(hosts)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"the part '{part}' failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


class Setting:
    """Sets up a run of one attempt, as the trainer does."""

    def __init__(self, options: argparse.Namespace) -> None:
        import jax
        import numpy as np

        from trainer.checkpoint.manager import Checkpoints
        from trainer.contract.config.job import Deadlines
        from trainer.contract.planning.plan import Corpus
        from trainer.contract.planning.planner import resolve
        from trainer.data.token_cache import Tokens
        from trainer.distributed import initialize, mesh
        from trainer.distributed.process_env import Environment
        from trainer.step.train_step import TrainProgram

        initialize.configure()
        self.environment = Environment.read(os.environ)
        initialize.start(self.environment, Deadlines(), on_cpu=True)
        hosts = self.environment.processes
        world = _world(hosts, jax.local_device_count())
        self.job = _job(options.mib)
        plan = resolve(self.job, world, Corpus(source="stdlib", sha256=None))
        self.program = TrainProgram.of(self.job, plan, mesh.build(plan))
        self.run_dir = options.folder
        tokens = Tokens("", np.empty(0), np.empty(0))
        opened = Checkpoints.open(
            self.job,
            plan,
            tokens,
            self.run_dir,
            self.environment,
            self.program.shapes,
            self.report(),
        )
        assert opened
        self.checkpoints = opened

    def report(self) -> Any:
        from trainer.telemetry.events import Events
        from trainer.telemetry.metrics import Report

        class Quiet(Report):
            """Records how long a save blocked."""

            blocked_s = 0.0

            def saved(self, step: int, size: int, seconds: float, blocked_s: float) -> None:
                self.blocked_s = blocked_s

            def print_line(self, line: str) -> None: ...

        return Quiet(self.job, self.environment, self.run_dir, Events(self.environment))


def _job(mib: int) -> Any:
    from trainer.contract.config.job import Job

    layers = max(1, round(mib / MIB_PER_LAYER))
    return Job.model_validate(
        {
            "name": "checkpoints",
            "steps": 1,
            "model": {"layers": layers, "d_model": 1024, "heads": 8, "kv_heads": 8, "d_ff": 4096},
            "data": {"source": "stdlib", "seq_len": 32, "global_batch": 8},
            "checkpoint": {"every_steps": 1, "keep": 1},
        }
    )


def _world(hosts: int, devices: int) -> Any:
    from trainer.contract.planning.plan import World

    return World(
        accelerator="cpu", platform="cpu", simulated=False, slices=1, hosts_per_slice=hosts,
        devices_per_host=devices, topology=None, host_bounds=None,
    )  # fmt: skip


def _save(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds for which alternating saves of both kinds block; round 1 warms up."""
    import orbax.checkpoint as ocp

    from trainer.checkpoint import facts
    from trainer.checkpoint import saver as saver_module
    from trainer.checkpoint.facts import Progress
    from trainer.checkpoint.saver import Saver
    from trainer.checkpoint.tree import flatten

    setting = Setting(options)
    state, report = setting.program.initial_state(), setting.report()
    opened = setting.checkpoints
    saver = Saver(opened.folder, opened.lease, opened.run, report)
    bare = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    digest = _Timed(facts.array_facts)
    saver_module.array_facts = digest
    seconds: dict[str, list[float]] = {"bare": [], "slipway": [], "digest": []}
    rounds = SAVES * options.rounds
    for number in range(rounds + 1):
        digest(flatten(state))  # before either, so that both find the caches alike
        target = options.folder / "bare"
        began = time.perf_counter()
        bare.save(target, args=ocp.args.PyTreeSave(flatten(state)))  # type: ignore[call-arg]
        bare_s = time.perf_counter() - began
        bare.wait_until_finished()
        shutil.rmtree(target)
        os.sync()
        saver.save(Progress(number + 1, 0, 0.0, None), state)
        saver.poll(wait=True)
        os.sync()
        if number:
            seconds["bare"].append(bare_s)
            seconds["slipway"].append(report.blocked_s - digest.seconds)
            seconds["digest"].append(digest.seconds)
    folder = options.folder / "checkpoints" / str(rounds + 1)
    return {**seconds, "bytes": sum(path.stat().st_size for path in _data(folder))}


class _Timed:
    """A function, and how long its last call took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = self._function(*arguments)
        self.seconds = time.perf_counter() - began
        return result


def _restore(options: argparse.Namespace) -> Numbers:
    """One host's restore, as a run does it."""
    import jax

    from trainer.checkpoint import restore
    from trainer.distributed import initialize

    setting = Setting(options)
    shapes, shardings = setting.program.shapes, setting.program.shardings
    restore.changed = check = _Timed(restore.changed)
    restorer = setting.checkpoints.restorer(setting.report())
    initialize.barrier("restore")
    began = time.perf_counter()
    restored = restorer.newest(shapes, shardings)
    seconds = time.perf_counter() - began
    assert restored
    shards = sum(
        shard.data.nbytes
        for array in jax.tree.leaves(restored.state)
        for shard in array.addressable_shards
    )
    peak = _peak()
    initialize.shutdown()
    return {"seconds": seconds, "check": check.seconds, "shards": shards, "peak": peak}


def _baseline(options: argparse.Namespace) -> Numbers:
    """Measures a process that has only imported the modules of a restore and connected."""
    import jax
    import orbax.checkpoint  # noqa: F401

    from trainer.contract.config.job import Deadlines
    from trainer.distributed import initialize
    from trainer.distributed.process_env import Environment

    initialize.start(Environment.read(os.environ), Deadlines(), on_cpu=True)
    jax.devices()
    initialize.shutdown()
    return {"peak": _peak()}


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "save": _save, "baseline": _baseline, "restore": _restore,
}  # fmt: skip


def _peak() -> int:
    """Returns the peak memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


def _data(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _drop_caches() -> bool:
    """Drops the page cache. Returns whether it was dropped, which only root can do."""
    os.sync()
    try:
        CACHES.write_text("3")
    except OSError:
        return False
    return True


def _dd(options: argparse.Namespace) -> float:
    """Returns the seconds that `dd` takes to read the files of the checkpoint one by one."""
    (folder,) = (path for path in (options.folder / "checkpoints").iterdir() if path.is_dir())
    files = list(_data(folder))
    _drop_caches()
    began = time.perf_counter()
    for file in files:
        command = ["dd", f"if={file}", "of=/dev/null", "bs=16M", "status=none"]
        subprocess.run(command, check=True)
    return time.perf_counter() - began


def _print_saves(saved: dict[str, Any]) -> None:
    mib = saved["bytes"] / 2**20
    bare, slipway, digest = (
        statistics.median(saved[kind]) for kind in ("bare", "slipway", "digest")
    )
    print(f"blocked by a save of {mib:,.0f} MiB")
    print(f"  bare Orbax                  {bare:8.3f} s")
    print(f"  slipway                     {slipway:8.3f} s     {slipway / bare:6.2f} x bare")
    print(f"  slipway's digest            {digest:8.3f} s")
    pairs = zip(saved["slipway"], saved["bare"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(
        f"  ratio                       {ratio:8.2f}, the median of the rounds' ratios", flush=True
    )


def _print_restores(size: int, base: float, rounds: list[tuple[float, list[Numbers]]]) -> None:
    caches = "empty caches" if _drop_caches() else "warm caches (only root can empty them)"
    print(f"restored on {len(rounds[0][1])} hosts, {caches}")
    rates = {
        "dd": [size / dd_s for dd_s, _ in rounds],
        "slipway": [size / max(h["seconds"] for h in hosts) for _, hosts in rounds],
        "without the digest": [
            size / max(h["seconds"] - h["check"] for h in hosts) for _, hosts in rounds
        ],
    }
    dd = statistics.median(rates["dd"])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"  {name:24} {rate / 2**20:8,.0f} MiB/s  {rate / dd:6.2f} x dd")
    hosts = [host for _, hosts in rounds for host in hosts]
    worst = max(hosts, key=lambda host: host["peak"] / host["shards"])
    peak, shards = worst["peak"] - base, worst["shards"]
    print(f"peak memory of a restoring host, beyond {base / 2**20:,.0f} MiB of JAX")
    print(f"  its shards                  {shards / 2**20:8,.0f} MiB")
    print(f"  peak                        {peak / 2**20:8,.0f} MiB  {peak / shards:6.2f} x shards")


if __name__ == "__main__":
    main()
