"""The program of recovery.py under Ray Train: a data-parallel loop with checkpoints, on two hosts.

    recovery_jax_trainer.py FOLDER EVERY_STEPS STEP_S

Brings up two simulated TPU hosts, whose lost nodes are replaced, and runs JaxTrainer on them.
Rank 0 appends its steps and checkpoints to FOLDER/events.jsonl, in the form of Slipway's events.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

REPLACE_S = 0.2


def main() -> None:
    """Runs until the process is ended."""
    from launcher.cluster.schema import find_cluster
    from launcher.core.events import Listener
    from launcher.gang.connect import connected
    from launcher.providers.local import provider

    _keep_agents()
    folder, every_steps, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    world = find_cluster("tpu-v4-16").value.world(simulated=True)
    with provider.start(world) as hosts:
        threading.Thread(target=_replace, args=(hosts.nodes,), daemon=True).start()
        with connected(hosts, folder, Listener()):
            _fit({"folder": str(folder), "every_steps": every_steps, "step_s": step_s})


def _keep_agents() -> None:
    """Starts nodes with Ray's own agents, which make the runtime environments of JaxTrainer."""
    from launcher.providers.ray import node_spec
    from launcher.providers.ray.node_group import NodeSpec

    def with_agents(make: Callable[..., NodeSpec]) -> Callable[..., NodeSpec]:
        return lambda *args, **options: replace(make(*args, **options), has_agents=True)

    node_spec.head, node_spec.host = with_agents(node_spec.head), with_agents(node_spec.host)


def _replace(nodes: Any) -> None:
    while True:
        nodes.replace_lost(time.monotonic())
        time.sleep(REPLACE_S)


def _fit(config: dict[str, Any]) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    environment = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": os.environ["XDG_CACHE_HOME"] + "/jax-trainer",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    JaxTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(
            use_tpu=True, num_workers=2, topology="2x2x2", accelerator_type="TPU-V4",
            resources_per_worker={"TPU": 4},
        ),
        run_config=RunConfig(
            storage_path=config["folder"] + "/storage",
            failure_config=FailureConfig(max_failures=-1),
            worker_runtime_env={"env_vars": environment},
        ),
    ).fit()  # fmt: skip


def train(config: dict[str, Any]) -> None:
    """Runs on each host: steps with a mean over all hosts, and periodic checkpoints."""
    import json
    import tempfile

    import jax
    import jax.numpy as jnp
    import numpy as np
    import ray.train
    from jax.sharding import NamedSharding, PartitionSpec

    folder, rank = Path(config["folder"]), ray.train.get_context().get_world_rank()
    events = folder / "events.jsonl"
    attempt = 1 + (events.read_text().count('"started"') if events.exists() else 0)

    def emit(event: str, **fields: Any) -> None:
        if rank == 0:
            line = {"event": event, "time": time.time(), "attempt": attempt, **fields}
            with events.open("a") as file:
                file.write(json.dumps(line) + "\n")

    assert jax.process_count() == 2
    (folder / f"rank-{rank}").write_text(str(os.getpid()))
    emit("started")
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    batches = NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def update(weights: Any, batch: Any) -> Any:
        return weights - 0.01 * jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(weights)

    done, weights = 0, jnp.ones((256, 256))
    if saved := ray.train.get_checkpoint():
        with saved.as_directory() as saved_folder:
            file = np.load(Path(saved_folder) / "state.npz")
            done, weights = int(file["step"]), jnp.asarray(file["weights"])
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    flag = folder / "sleep"
    while True:
        time.sleep(config["step_s"])
        if rank == 1 and flag.exists():
            flag.unlink()
            time.sleep(9999)
        done += 1
        batch = jax.make_array_from_process_local_data(batches, np.ones((8, 256), np.float32))
        weights = jax.block_until_ready(update(weights, batch))
        emit("step", step=done)
        if done % config["every_steps"] == 0:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = None
                if rank == 0:
                    np.savez(Path(folder) / "state.npz", step=done, weights=np.asarray(weights))
                    checkpoint = ray.train.Checkpoint.from_directory(folder)
                ray.train.report({"step": done}, checkpoint=checkpoint)
            emit("checkpoint_saved", step=done)


if __name__ == "__main__":
    main()
