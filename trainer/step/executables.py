"""Compiled programs on disk, which a later process of the same job loads without tracing them.

A process finds a program in JAX's compile cache only after it has traced and lowered it: seconds
after every fault. Here it finds a program by what it is made from: job, plan, code, libraries,
environment and number of the process. Outside `kept`, every process traces its programs.
"""

import hashlib
import os
import pickle
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import jax
from jax.experimental import serialize_executable

from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol import versions
from trainer.contract.records.compatibility import code_of
from trainer.contract.storage.cache_dirs import cache_folder
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.distributed.mesh import Device

Value = TypeVar("Value")
Compiled: TypeAlias = jax.stages.Compiled
VARIABLES = re.compile(r"(JAX_(?!COORDINATOR)|XLA_|LIBTPU_|TPU_|CUDA_|NVIDIA_|NCCL_)\w+")
"""Environment variables that may change a program."""
WITHOUT_EFFECT = {
    "name", "retries", "deadlines", "stop_after_step", "log_every", "tensorboard", "wandb",
    "profile", "eval", "checkpoint",
}  # fmt: skip
"""Keys of a job that change no program."""
RATE = {"optimizer": {"learning_rate"}}
"""One that changes none either: the learning rate is an argument of the step."""
CPU_FEATURES = re.compile(r"^(?:flags|Features)\s*:.*$", re.MULTILINE)
CPU_INFO = Path("/proc/cpuinfo")
DIGEST_BYTES = hashlib.sha256().digest_size

TRACED = "/jax/core/compile/jaxpr_trace_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"
"""Events of jax.monitoring. A program that is read from JAX's cache counts as compiled, too."""


@dataclass
class Counts:
    """Work on programs that this process has done."""

    traces: int = 0
    compilations: int = 0
    """Number of programs that were compiled or read from JAX's compile cache."""
    cache_hits: int = 0
    """Number of those that were read from it."""


@contextmanager
def counting() -> Iterator[Counts]:
    """Yields counts that grow with the traces and compilations of all threads."""
    counts = Counts()

    def on_duration(event: str, duration_secs: float, **_: str | int) -> None:
        counts.traces += event == TRACED
        counts.compilations += event == COMPILED

    def on_event(event: str, **_: str | int) -> None:
        counts.cache_hits += event == CACHE_HIT

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_listener(on_event)
        jax.monitoring.unregister_event_duration_listener(on_duration)


class Executables:
    """The programs of one process, in a folder of equal processes of equal runs."""

    def __init__(self, folder: Path, devices: Sequence[Device]) -> None:
        self._folder, self._devices = folder, devices
        self._programs: dict[str, Compiled] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="executables")

    def program(self, name: str, args: Any, compile: Callable[[], Compiled]) -> Compiled:
        """Returns a program that was used before, loaded from its file, or compiled and kept."""
        if name not in self._programs:
            self._programs[name] = self._loaded(name, args) or self._compiled(name, compile)
        return self._programs[name]

    def value(self, name: str, make: Callable[[], Value]) -> Value:
        """Returns a value from its file, or makes and keeps it."""
        data = _read(self._folder / name)
        if data is not None:
            return pickle.loads(data)
        value = make()
        self._writer.submit(_write, self._folder / name, pickle.dumps(value))
        return value

    def close(self) -> None:
        """Waits until all files are written."""
        self._writer.shutdown()

    def _loaded(self, name: str, args: Any) -> Compiled | None:
        data = _read(self._folder / name)
        if data is None:
            return None
        try:
            return serialize_executable.deserialize_and_load(
                *pickle.loads(data), execution_devices=_devices_of(args) or self._devices
            )
        except jax.errors.JaxRuntimeError:
            return None  # the compiler may say more

    def _compiled(self, name: str, compile: Callable[[], Compiled]) -> Compiled:
        with counting() as counts:
            program = compile()
        # XLA's CPU compiler loses a program's functions when it serializes one that was loaded.
        if not counts.cache_hits or self._devices[0].platform != "cpu":
            self._writer.submit(_keep, self._folder / name, program)
        return program


_kept: Executables | None = None


@contextmanager
def kept(job: Job, plan: Plan, devices: Sequence[Device]) -> Iterator[None]:
    """Loads the programs of earlier processes, and keeps those that are compiled meanwhile.

    `devices` are those of the mesh, in its order. Programs of custom models are not kept: their
    code may depend on files that no hash covers.
    """
    global _kept
    if isinstance(job.model, CustomModel):
        yield
        return
    _kept = Executables(cache_folder() / "executables" / _key(job, plan, devices[0]), devices)
    try:
        yield
    finally:
        _kept.close()
        _kept = None


def compiled(
    function: Any, *args: Any, finish: Callable[[jax.stages.Lowered], Compiled] | None = None
) -> Compiled:
    """Returns the program of a jitted function for arguments like `args`: arrays or shapes.

    `finish` compiles the lowered function, by default with JAX's options.
    """

    def compile() -> Compiled:
        lowered = function.lower(*args)
        return finish(lowered) if finish else lowered.compile()

    return _kept.program(_name(function, args), args, compile) if _kept else compile()


def call(function: Any, *args: Any) -> Any:
    """Calls a jitted function, with the program that was kept for such arguments, if any."""
    return compiled(function, *args)(*args) if _kept else function(*args)


def value(name: str, make: Callable[[], Value]) -> Value:
    """Returns a value that only a trace can make, or the one that an earlier process has made."""
    return _kept.value(name, make) if _kept else make()


def _key(job: Job, plan: Plan, device: Device) -> str:
    """Returns the hash of everything that a program of this process depends on."""
    cpu = CPU_FEATURES.search(CPU_INFO.read_text()) if CPU_INFO.exists() else None
    parts = [
        job.model_dump_json(exclude={**dict.fromkeys(WITHOUT_EFFECT, True), **RATE}),
        str(vocab_size(job)),
        plan.model_dump_json(),
        code_of(job),
        str(sorted(versions.versions().items())),
        str(sorted(item for item in os.environ.items() if VARIABLES.fullmatch(item[0]))),
        f"{jax.process_index()} {device.device_kind} {device.client.platform_version}",
        cpu[0] if cpu else platform.machine(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _name(function: Any, args: Any) -> str:
    """Returns a file name for a function with arguments of these shapes, dtypes and shardings."""
    leaves, tree = jax.tree.flatten(args)
    about = [(leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)) for leaf in leaves]
    parts = hashlib.sha256(f"{tree} {about}".encode()).hexdigest()
    return f"{function.__qualname__}-{parts[:32]}"


def _devices_of(args: Any) -> list[Device] | None:
    """Returns the only device of arguments that are arrays of one device, else None."""
    shardings = [leaf.sharding for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
    places = set().union(*(sharding.device_set for sharding in shardings))
    return list(places) if len(places) == 1 else None


def _keep(path: Path, program: Compiled) -> None:
    """Writes a program, unless its compiler cannot serialize it."""
    try:
        serialized = serialize_executable.serialize(program)
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        return
    _write(path, pickle.dumps(serialized))


def _write(path: Path, data: bytes) -> None:
    """Writes data after its digest. Where the cache cannot be written, the next process traces."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(data).digest() + data)
        temporary.replace(path)


def _read(path: Path) -> bytes | None:
    """Returns the data of a file; None when it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == digest else None
