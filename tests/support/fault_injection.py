"""Faults inside of a trainer: code that one host's Python runs when it has imported a module."""

from collections.abc import Iterable
from pathlib import Path

HOOK = """\
import importlib.abc, importlib.util, os, signal, sys, time

class Sabotage(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def load_and_change(module):
            load(module)
            change(module)
        spec.loader.exec_module = load_and_change
        return spec

def once(name=""):
    try:
        os.mkdir({once!r} + name)
    except FileExistsError:
        return False
    return True

sys.meta_path.insert(0, Sabotage())

"""
STEPS = """\
def change(module):
    training = module.BatchLoader.training
    def sabotaged(self, first_step):
        for step, batch in enumerate(training(self, first_step), first_step):
            before(step)
            yield batch
    module.BatchLoader.training = sabotaged

def before(step):
    {code}
"""
PHASES = """\
def change(module):
    import contextlib
    phase = module.Events.phase
    @contextlib.contextmanager
    def sabotaged(self, name):
        with phase(self, name):
            within(name)
            yield
    module.Events.phase = sabotaged

def within(name):
    {code}
"""
COMMITS = """\
def change(module):
    commit, after_commit = module.Saver._commit, module.Saver._after_commit
    explain = module.Saver._stale_instead_of
    def sabotaged_commit(self, *arguments):
        at("written", self._about.step)
        commit(self, *arguments)
        at("checked", self._about.step)
    def sabotaged_after_commit(self):
        at("renamed", self._about.step)
        after_commit(self)
        at("committed", self._about.step)
    def sabotaged_explain(self, error):
        at("failed", self._about.step)
        return explain(self, error)
    module.Saver._commit = sabotaged_commit
    module.Saver._after_commit = sabotaged_after_commit
    module.Saver._stale_instead_of = sabotaged_explain

def at(moment, step):
    {code}
"""
LINES = """\
def change(module):
    lines = module.lines
    def sabotaged(opened, read, over=0):
        return lines((changed(*line) for line in enumerate(opened, 1)), read, over)
    module.lines = sabotaged

def changed(number, line):
    return {code}
"""
COPIES = """\
def change(module):
    import socket
    store = module.HostMemory.store
    host, step, copied = {code}
    def sabotaged(self, path, size, kept, content):
        if content.stamp.step != step:
            return store(self, path, size, kept, content)
        if os.environ["SLIPWAY_PROCESS_ID"] != host or not once():
            store(self, path, size, kept, content)
            once("copied")
            return
        request = module.StoreRequest(
            token=self.address.token, attempt=content.stamp.attempt, size=size, kept=kept,
            content=content,
        )
        sent = socket.create_connection(self._place)
        sent.sendall(module.encode(request))
        with open(path, "rb") as file:
            sent.sendall(file.read(size // 2))
        while not os.path.exists(copied):
            time.sleep(0.01)
        once("half")
        time.sleep(1000)
    module.HostMemory.store = sabotaged
"""
SETTLED = """\
def change(module):
    settle = module.MemorySaver.settle
    step, settled, flag = {code}
    def sabotaged(self):
        settle(self)
        if self._kept and self._kept.step == step:
            os.makedirs(settled + os.environ["SLIPWAY_PROCESS_ID"], exist_ok=True)
            while not os.path.exists(flag):
                time.sleep(0.05)
    module.MemorySaver.settle = sabotaged
"""
GRADIENTS = """\
NUMBERS = 1 << 12
# An example's number is below NUMBERS. Above it is the fault: 1 + (array, bit, element).

def change(module):
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import PartitionSpec
    import trainer.data.loader as loader
    training, sums = loader.BatchLoader.training, module.TrainProgram._sums
    of_all_devices = module.of_all_devices

    def sabotaged_training(self, first_step):
        for step, batch in enumerate(training(self, first_step), first_step):
            yield batch._replace(examples=marked(batch.examples, step))

    def marked(examples, step):
        parts = [
            jax.device_put(
                np.asarray(one.data) + np.int32(fault(step, one.device) * NUMBERS), one.device
            )
            for one in examples.addressable_shards
        ]
        return jax.make_array_from_single_device_arrays(examples.shape, examples.sharding, parts)

    def sabotaged_sums(self, state, batch):
        clean = batch._replace(examples=batch.examples % NUMBERS)
        totals, grads = sums(self, state, clean)
        specs = [self.shardings.params[name].spec for name in grads]
        rows = loader.batch_shardings(self.mesh).examples.spec
        flipped = jax.shard_map(
            flip, mesh=self.mesh, in_specs=(rows, *specs), out_specs=specs, check_vma=False
        )(batch.examples // NUMBERS, *grads.values())
        return totals, dict(zip(grads, flipped))

    def flip(codes, *arrays):
        code = jnp.max(codes)
        which, bit, element = (code - 1) >> 13, ((code - 1) >> 8) & 31, (code - 1) & 255
        return [
            jnp.where((code > 0) & (which % len(arrays) == n), flipped(array, bit, element), array)
            for n, array in enumerate(arrays)
        ]

    def flipped(array, bit, element):
        flat = array.reshape(-1)
        largest = jnp.argsort(-jnp.abs(flat))[element % jnp.maximum(1, jnp.sum(flat != 0))]
        bits = jax.lax.bitcast_convert_type(flat, jnp.uint32)
        bits = bits.at[largest].set(bits[largest] ^ (jnp.uint32(1) << bit.astype(jnp.uint32)))
        return jax.lax.bitcast_convert_type(bits, array.dtype).reshape(array.shape)

    loader.BatchLoader.training = sabotaged_training
    module.TrainProgram._sums = sabotaged_sums
    module.of_all_devices = lambda mesh, examples, requests: of_all_devices(
        mesh, examples % NUMBERS, requests
    )

def fault(step, device):
    if os.environ.get("FAULT_STEP") != str(step):
        return 0
    return 1 + int(os.environ["FAULT_CODE"])
"""
CHECKS = """\
MARK = 1 << 20
# A step is below MARK. Above it is the fault.

def change(module):
    import jax, jax.numpy as jnp
    compile, gradients = module.HostCheck._compile, module.TrainProgram.gradients

    def sabotaged_compile(self, *arguments, **options):
        program = compile(self, *arguments, **options)
        def run(weights, step, batch):
            return program(weights, step + is_wrong(int(step) + 1) * MARK, batch)
        return run

    def sabotaged_gradients(self, state, batch):
        fault = (state.step // MARK).astype(jnp.uint32)
        found = gradients(self, state._replace(step=state.step % MARK), batch)
        bits = jax.lax.bitcast_convert_type(found[{code!r}], jnp.uint32)
        flat = bits.reshape(-1)
        flat = flat.at[5].set(flat[5] ^ (fault << 12))
        flipped = jax.lax.bitcast_convert_type(flat.reshape(bits.shape), jnp.float32)
        return {{**found, {code!r}: flipped}}

    module.HostCheck._compile = sabotaged_compile
    module.TrainProgram.gradients = sabotaged_gradients

def is_wrong(step):
    return os.environ.get("FAULT_STEP") == str(step)
"""
LASTING = """\
FIRST = int(os.environ.get("FAULT_STEP", MARK))
change_checks = change

def change(module):
    from trainer.step import train_step
    change_steps(train_step)
    change_checks(module)

def fault(step, device):
    return 1 + int(os.environ["FAULT_CODE"]) if step >= FIRST else 0

def is_wrong(step):
    return step > FIRST
"""
"""Follows GRADIENTS and CHECKS."""


def sabotage(folder: Path, code: str, host: int = 1) -> str:
    """A provider's option: on a host, `code` runs before the batch of each `step` is handed over.

    `once()` is true for the first who asks.
    """
    return _on_host(host, hook(folder, "trainer.data.loader", STEPS, code))


def sleepy_steps(folder: Path) -> Path:
    """Writes a folder for PYTHONPATH: steps sleep, so a run leaves the cores to other tests."""
    return hook(folder, "trainer.data.loader", STEPS, "time.sleep(0.05)")


def sabotage_phases(folder: Path, code: str) -> str:
    """A provider's option: on host 1, `code` runs at the beginning of each phase, within it.

    `name` is the phase's; `once(name)` is true for the first caller.
    """
    return _on_host(1, hook(folder, "trainer.telemetry.events", PHASES, code))


def sabotage_commits(folder: Path, code: str) -> str:
    """Returns a provider's option: on host 0, `code` runs at each moment of a commit.

    `moment` is "written" before the commit, "checked" right before the rename, "renamed" right
    after it, "committed" after the garbage collection, and "failed" where an error ends the save.
    `step` is the checkpoint's.
    """
    return _on_host(0, hook(folder, "trainer.checkpoint.saver", COMMITS, code))


def sabotage_copy(folder: Path, host: int, step: int) -> tuple[str, Path]:
    """Returns a provider's option: one of two hosts never ends its copy of a step to the other.

    The path exists when half of its bytes are sent, and the copy of the other host is complete.
    """
    code = repr((str(host), step, str(folder / "once-copied")))
    path = hook(folder, "trainer.checkpoint.memory_client", COPIES, code)
    return _on_hosts((0, 1), path), folder / "once-half"


def hold_after_copies(
    folder: Path, step: int, flag: Path, processes: int = 2
) -> tuple[str, list[Path]]:
    """Returns a provider's option: two hosts wait for `flag` once a step is in their memory.

    A path of each process exists when it waits. Its shards and their copy are complete.
    """
    code = repr((step, str(folder / "settled-"), str(flag)))
    path = hook(folder, "trainer.checkpoint.memory_saver", SETTLED, code)
    return _on_hosts((0, 1), path), [folder / f"settled-{one}" for one in range(processes)]


def sabotage_lines(folder: Path, code: str) -> str:
    """Returns a provider's option: host 1 reads `code` in place of each line of a jsonl file.

    `code` is an expression of `number`, from 1, and of `line`, the bytes of the file. Host 1 has
    its own token cache, so it reads the file itself.
    """
    path = hook(folder, "trainer.data.readers", LINES, code)
    return _on_host(1, path).replace("PYTHONPATH", f"XDG_CACHE_HOME: {folder}/cache, PYTHONPATH")


def flip_gradient_bit(
    folder: Path, hosts: int, host: int, step: int, fault: tuple[int, int, int]
) -> str:
    """Returns a provider's option: a host flips one bit of one gradient whenever it does `step`.

    `fault`: number of the array (below 32), number of the bit, and the element of the host's part
    of the array by its size (below 256). All hosts run one program, which does nothing on the
    others. Rows of the batch must belong to one host. Keep its programs out of the cache of others.
    """
    path = hook(folder, "trainer.step.train_step", GRADIENTS, "")
    array, bit, element = fault
    faulty = f", FAULT_STEP: '{step}', FAULT_CODE: '{(array << 13) | (bit << 8) | element}'"
    common = f"PYTHONPATH: {path}, XDG_CACHE_HOME: {folder / 'cache'}"
    each = [f"{one}: {{{common}{faulty * (one == host)}}}" for one in range(hosts)]
    return f", host_env: {{{', '.join(each)}}}"


def flip_checked_gradient(folder: Path, step: int, name: str) -> tuple[Path, dict[str, str]]:
    """Returns a folder for the PYTHONPATH of all hosts, and the variables of a faulty one.

    The faulty host flips one bit of the gradient `name` whenever it computes it in the check of
    hosts at `step`. All hosts run one program.
    """
    path = hook(folder, "trainer.integrity.host_check", CHECKS, name)
    return path, {"FAULT_STEP": str(step)}


def flip_from_step(folder: Path, step: int, name: str) -> tuple[Path, dict[str, str]]:
    """Returns a folder for the PYTHONPATH of all hosts, and the variables of a faulty one.

    The faulty host flips one bit of a gradient in the update of `step` and in all later ones, and
    one bit of the gradient `name` in all checks after that of `step`. As with `flip_gradient_bit`,
    keep its programs out of the cache of others.
    """
    changes = f"{GRADIENTS}\nchange_steps = change\n{CHECKS}{LASTING}"
    path = hook(folder, "trainer.integrity.host_check", changes, name)
    return path, {"FAULT_STEP": str(step), "FAULT_CODE": str((3 << 13) | (27 << 8) | 7)}


def hook(folder: Path, module: str, change: str, code: str) -> Path:
    """Writes a folder for PYTHONPATH, which changes `module` when it is imported."""
    path = folder / "sabotage"
    path.mkdir()
    text = HOOK.format(module=module, once=str(folder / "once-")) + change.format(code=code)
    (path / "sitecustomize.py").write_text(text)
    return path


def _on_host(host: int, path: Path) -> str:
    return _on_hosts((host,), path)


def _on_hosts(hosts: Iterable[int], path: Path) -> str:
    each = ", ".join(f"{host}: {{PYTHONPATH: {path}}}" for host in hosts)
    return f", host_env: {{{each}}}"
