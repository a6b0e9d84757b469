"""Compiled programs on disk, which a later process loads without tracing them.

A process finds a program in JAX's compile cache only after it has traced and lowered it: seconds
after every fault. Here it finds a program by what it is made from. `compiled` is for programs of a
job: keyed by job, plan, code, libraries, environment and number of the process. `shared` and `call`
are for those that depend on the shapes and shardings of their arguments only: all jobs share them.
Outside `kept`, every process traces its programs.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.storage.cache_dirs import cache_folder
from trainer.contract.storage.compiled_programs import EXECUTABLES
from trainer.distributed.mesh import Device
from trainer.distributed.program_exchange import ProgramExchange
from trainer.programs import keys
from trainer.programs.store import ProgramStore, limit_bytes

Value = TypeVar("Value")
Compiled: TypeAlias = jax.stages.Compiled
Lower: TypeAlias = Callable[[], jax.stages.Lowered]
Finish: TypeAlias = Callable[[jax.stages.Lowered], Compiled]
SAME_AS = b"same as "
"""Start of a file that names another one, which has the program. No pickled data starts with it."""


def _compile(lowered: jax.stages.Lowered) -> Compiled:
    return lowered.compile()


class Executables:
    """The programs of one process: those that it has loaded or compiled.

    A program's file has the program, or the name of another file that has it.
    """

    def __init__(
        self,
        store: ProgramStore,
        job_key: str,
        devices: Sequence[Device],
        brought: Mapping[str, bytes],
        record: dict[str, bytes] | None,
        exchange: ProgramExchange | None,
    ) -> None:
        """`brought` has files that came with the run; they are not written to the store.

        `record` receives every file that is read or written. With an `exchange`, process 0
        compiles the programs of the job for all processes.
        """
        self._store, self._devices, self._brought, self._record = store, devices, brought, record
        self._exchange = exchange
        self.of_job, self.of_machine = job_key, keys.of_machine(devices[0])
        self.loaded = 0
        """Number of programs loaded from those that came with the run."""
        self._programs: dict[str, Compiled] = {}
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="executables")

    def program(self, name: str, args: Any, lower: Lower, finish: Finish) -> Compiled:
        """Returns a program that was used before, loaded from its file, or compiled and kept."""
        if name not in self._programs:
            self._programs[name] = self._loaded(name, args) or self._compiled(name, lower, finish)
        return self._programs[name]

    def program_of_job(self, name: str, args: Any, lower: Lower, finish: Finish) -> Compiled:
        """Returns a job's program like `program`.

        After a trace, it also finds the program of another job that was the same one. A program for
        one device is not exchanged: no other process runs it.
        """
        own = f"{self.of_job}/{name}"
        if own not in self._programs:
            exchange = None if _devices_of(args) else self._exchange
            found = self._loaded(own, args)
            is_new = found is None
            if found is None and exchange and not exchange.sends:
                found = self._received(exchange, name, own, args)
            if found is None:
                found = self._traced(own, args, lower, finish)
            if exchange and exchange.sends:
                self._writer.submit(self._send, exchange, name, own if is_new else None)
            self._programs[own] = found
        return self._programs[own]

    def value(self, name: str, make: Callable[[], Value]) -> Value:
        """Returns a job's value from its file, or makes and keeps it."""
        path = f"{self.of_job}/{name}"
        data = self._read(path)
        if data is not None:
            return pickle.loads(data)
        value = make()
        self._writer.submit(self._put, path, pickle.dumps(value))
        return value

    def close(self) -> None:
        """Waits until all files are written."""
        self._writer.shutdown()
        self._store.close()

    def _loaded(self, name: str, args: Any) -> Compiled | None:
        data = self._read(name)
        if data is None:
            return None
        if data.startswith(SAME_AS):
            return self._loaded(_named_by(data), args)
        return self._deserialized(name, data, args)

    def _deserialized(self, name: str, data: bytes, args: Any) -> Compiled | None:
        try:
            program = serialize_executable.deserialize_and_load(
                *pickle.loads(data), execution_devices=_devices_of(args) or self._devices
            )
        except jax.errors.JaxRuntimeError as error:
            if name in self._brought:
                reason = str(error).partition("\n")[0]
                print(f"hot start: a program cannot be loaded: {reason}. Compiling it", flush=True)
            return None  # the compiler may say more
        self.loaded += name in self._brought
        return program

    def _read(self, name: str) -> bytes | None:
        data = self._brought.get(name) or self._store.read(name)
        if data is not None and self._record is not None:
            self._record[name] = data
        return data

    def _received(
        self, exchange: ProgramExchange, name: str, own: str, args: Any
    ) -> Compiled | None:
        """Returns the program that process 0 has compiled, and keeps it as `own`."""
        data = exchange.receive(name)
        if not data:
            return None
        self._writer.submit(self._put, own, data)
        return self._deserialized(own, data, args)

    def _send(self, exchange: ProgramExchange, name: str, own: str | None) -> None:
        """Sends the program `own` once it is written; without it, the others use their own."""
        try:
            exchange.send(name, (own and self._content(own)) or b"")
        except (OSError, jax.errors.JaxRuntimeError) as error:
            print(f"cannot send '{name}' to the other processes: {error}", flush=True)
            exchange.send(name, b"")

    def _content(self, name: str) -> bytes | None:
        """Returns the data of a program in the store."""
        data = self._store.read(name)
        return self._content(_named_by(data)) if data and data.startswith(SAME_AS) else data

    def _traced(self, name: str, args: Any, lower: Lower, finish: Finish) -> Compiled:
        """Returns the program of a lowered function, which is kept under its text, too."""
        lowered = lower()
        same = f"{self.of_machine}/{keys.of_text(lowered, self._devices)}"
        self._writer.submit(self._put, name, SAME_AS + same.encode())
        return self._loaded(same, args) or self._compiled(same, lambda: lowered, finish)

    def _compiled(self, name: str, lower: Lower, finish: Finish) -> Compiled:
        lowered = lower()
        with _no_compile_cache(self._devices[0]):
            program = finish(lowered)
        self._writer.submit(self._keep, name, program)
        return program

    def _keep(self, name: str, program: Compiled) -> None:
        """Writes a program, unless its compiler cannot serialize it."""
        try:
            serialized = serialize_executable.serialize(program)
        except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
            return
        self._put(name, pickle.dumps(serialized))

    def _put(self, name: str, data: bytes) -> None:
        if self._record is not None:
            self._record[name] = data
        self._store.write(name, data)


def _named_by(data: bytes) -> str:
    return data.removeprefix(SAME_AS).decode()


@contextmanager
def _no_compile_cache(device: Device) -> Iterator[None]:
    """Compiles on CPU without JAX's compile cache.

    XLA's CPU compiler loses a program's functions when it serializes one that was loaded.
    """
    if device.platform != "cpu":
        yield
        return
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it asks for the setting only once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


_kept: Executables | None = None
NONE: Mapping[str, bytes] = {}


@contextmanager
def kept(
    job: Job,
    plan: Plan,
    devices: Sequence[Device],
    brought: Mapping[str, bytes] = NONE,
    record: dict[str, bytes] | None = None,
    exchange: ProgramExchange | None = None,
) -> Iterator[Executables | None]:
    """Loads the programs of earlier processes, and keeps those that are compiled meanwhile.

    `devices` are those of the mesh, in its order; for the other arguments see `Executables`. A
    limit of 0 bytes keeps and loads none, and yields None. Raises ConfigError for a limit that is
    not a number.
    """
    global _kept
    limit = limit_bytes()
    if exchange and not exchange.is_agreed(limit > 0):
        exchange = None
    if not limit:
        yield None
        return
    store = ProgramStore(cache_folder() / EXECUTABLES, limit)
    of_job = keys.of_job(job, plan, devices[0])
    _kept = Executables(store, of_job, devices, brought, record, exchange)
    try:
        yield _kept
    finally:
        _kept.close()
        _kept = None


def compiled(function: Any, *args: Any, finish: Finish = _compile) -> Compiled:
    """Returns the program of a job's jitted function for arguments like `args`: arrays or shapes.

    `finish` compiles the lowered function, by default with JAX's options.
    """

    def lower() -> jax.stages.Lowered:
        return function.lower(*args)

    if _kept is None:
        return finish(lower())
    return _kept.program_of_job(keys.name(function, args), args, lower, finish)


def shared(function: Any, *args: Any, result: jax.sharding.Sharding | None = None) -> Compiled:
    """Returns the program of a jitted function that depends on no job, for arguments like `args`.

    The function must depend on the shapes and shardings of its arguments only, and on `result`, the
    sharding of its results, if it has one.
    """

    def lower() -> jax.stages.Lowered:
        return function.lower(*args)

    if _kept is None:
        return lower().compile()
    name = f"{_kept.of_machine}/{keys.name(function, args, result)}"
    return _kept.program(name, args, lower, _compile)


def call(function: Any, *args: Any, result: jax.sharding.Sharding | None = None) -> Any:
    """Calls a jitted function, with its `shared` program where programs are kept."""
    return shared(function, *args, result=result)(*args) if _kept else function(*args)


def value(name: str, make: Callable[[], Value]) -> Value:
    """Returns a job's value that only a trace can make, or the one that was made before."""
    return _kept.value(name, make) if _kept else make()


def loaded() -> int:
    """Returns the number of programs that came with the run and that this process has loaded."""
    return _kept.loaded if _kept else 0


def _devices_of(args: Any) -> list[Device] | None:
    """Returns the only device of arguments that are on one device, else None."""
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    places = set().union(*(sharding.device_set for sharding in shardings if sharding))
    return list(places) if len(places) == 1 else None
