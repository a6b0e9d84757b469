"""Why a run cannot save, restore or go on. Imports no jax: the program's end must know them all."""

from trainer.contract.storage.corpus import DataError


class FolderError(ValueError):
    """The folder for checkpoints cannot serve all hosts: not shared, not writable, no room."""


class OtherRunError(FolderError):
    """The folder holds another run's checkpoints."""


class StaleError(Exception):
    """A newer attempt of the run has taken over: this one must end and commit nothing."""


class StoppedError(Exception):
    """The run was asked to stop; it saved what it had and can be resumed."""


class SaveError(Exception):
    """A checkpoint could not be saved, and the job says to stop then."""


class RestoreError(Exception):
    """A checkpoint could not be read, and nothing proves that it is damaged."""


class NoGoodCheckpointError(DataError):
    """There are checkpoints, and none of them can be restored."""
