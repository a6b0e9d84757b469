"""Faults inside of a trainer: code that one host's Python runs when it has imported a module."""

from pathlib import Path

HOOK = """\
import importlib.abc, importlib.util, os, signal, sys, time

class Sabotage(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "trainer.data.feed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def load_and_change(module):
            load(module)
            change(module)
        spec.loader.exec_module = load_and_change
        return spec

def change(module):
    training = module.Feed.training
    def sabotaged(self, first_step):
        for step, batch in enumerate(training(self, first_step), first_step):
            before(step)
            yield batch
    module.Feed.training = sabotaged

def once():
    try:
        os.mkdir({once!r})
    except FileExistsError:
        return False
    return True

def before(step):
    {code}

sys.meta_path.insert(0, Sabotage())
"""


def sabotage(folder: Path, code: str) -> str:
    """A provider's option: on host 1, `code` runs before the batch of each `step` is handed over.

    `once()` is true for the first who asks.
    """
    hook = folder / "sabotage"
    hook.mkdir()
    text = HOOK.format(once=str(folder / "once"), code=code)
    (hook / "sitecustomize.py").write_text(text)
    return f", host_env: {{1: {{PYTHONPATH: {hook}}}}}"
