"""Trains Flax NNX models with JAX. A job describes the model, the data and the training.

The names of `__all__` are stable. They load when they are first used: the schemas need no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.contract.config.data import Data
    from trainer.contract.config.job import Job
    from trainer.contract.config.model import Model
    from trainer.contract.config.optimizer import Optimizer
    from trainer.contract.planning.plan import Plan
    from trainer.data.packing import Batch
    from trainer.model.sharding import constrain
    from trainer.tools.export_checkpoint import export_hugging_face, load_weights

__all__ = [
    "Batch",
    "Data",
    "Job",
    "Model",
    "Optimizer",
    "Plan",
    "constrain",
    "export_hugging_face",
    "load_weights",
]

_MODULES = {
    "Batch": "trainer.data.packing",
    "Data": "trainer.contract.config.data",
    "Job": "trainer.contract.config.job",
    "Model": "trainer.contract.config.model",
    "Optimizer": "trainer.contract.config.optimizer",
    "Plan": "trainer.contract.planning.plan",
    "constrain": "trainer.model.sharding",
    "export_hugging_face": "trainer.tools.export_checkpoint",
    "load_weights": "trainer.tools.export_checkpoint",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
