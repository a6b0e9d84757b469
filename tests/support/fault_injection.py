"""Faults inside of a trainer: code that one host's Python runs when it has imported a module."""

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
    def sabotaged(self, path, size, kept, content):
        if content.stamp.step != {code} or not once():
            return store(self, path, size, kept, content)
        request = module.StoreRequest(
            token=self.address.token, attempt=content.stamp.attempt, size=size, kept=kept,
            content=content,
        )
        sent = socket.create_connection(self._place)
        sent.sendall(module.encode(request))
        with open(path, "rb") as file:
            sent.sendall(file.read(size // 2))
        once("half")
        time.sleep(1000)
    module.HostMemory.store = sabotaged
"""


def sabotage(folder: Path, code: str) -> str:
    """A provider's option: on host 1, `code` runs before the batch of each `step` is handed over.

    `once()` is true for the first who asks.
    """
    return _on_host(1, hook(folder, "trainer.data.loader", STEPS, code))


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
    """Returns a provider's option: a host never ends its copy of a step to its neighbor's memory.

    The path exists when half of the bytes are sent.
    """
    path = hook(folder, "trainer.checkpoint.memory_client", COPIES, str(step))
    return _on_host(host, path), folder / "once-half"


def sabotage_lines(folder: Path, code: str) -> str:
    """Returns a provider's option: host 1 reads `code` in place of each line of a jsonl file.

    `code` is an expression of `number`, from 1, and of `line`, the bytes of the file. Host 1 has
    its own token cache, so it reads the file itself.
    """
    path = hook(folder, "trainer.data.readers", LINES, code)
    return _on_host(1, path).replace("PYTHONPATH", f"XDG_CACHE_HOME: {folder}/cache, PYTHONPATH")


def hook(folder: Path, module: str, change: str, code: str) -> Path:
    """Writes a folder for PYTHONPATH, which changes `module` when it is imported."""
    path = folder / "sabotage"
    path.mkdir()
    text = HOOK.format(module=module, once=str(folder / "once-")) + change.format(code=code)
    (path / "sitecustomize.py").write_text(text)
    return path


def _on_host(host: int, path: Path) -> str:
    return f", host_env: {{{host}: {{PYTHONPATH: {path}}}}}"
