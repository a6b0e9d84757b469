"""Errors that stop a save, a restore or a run.

Imports no jax: `trainer/__main__.py` maps each of them to an exit code.
"""

from trainer.contract.storage.corpus import DataError


class FolderError(ValueError):
    """The checkpoint folder cannot serve all hosts: not shared, not writable, no free space."""


class OtherRunError(FolderError):
    """The folder holds another run's checkpoints."""


class StaleError(Exception):
    """A newer attempt of the run has taken over: this attempt must end and commit nothing."""


class StoppedError(Exception):
    """A stop was requested; the run saved its state and can be resumed."""


class SaveError(Exception):
    """A checkpoint could not be saved, and the run must stop."""


class RestoreError(Exception):
    """A checkpoint could not be read, and nothing proves that it is damaged."""


class NoGoodCheckpointError(DataError):
    """Checkpoints exist, but none of them can be restored."""
