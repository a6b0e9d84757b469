"""A model with its LoRA adapters merged into its kernels.

References:
    LoRA: https://arxiv.org/abs/2106.09685
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from trainer.checkpoint import layer_dims
from trainer.checkpoint.digests import digests
from trainer.checkpoint.weights import Source, opened
from trainer.contract.config.job import Job
from trainer.contract.planning.lora import KERNEL, A, B
from trainer.contract.planning.parameter_shapes import parameters
from trainer.contract.records.checkpoint_metadata import Base
from trainer.contract.storage.paths import to_path
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.model.lora import merged


@dataclass(frozen=True)
class Merged(Mapping[str, np.ndarray]):
    """The model's parameters by name; each is read and checked on access.

    Raises BrokenError for a parameter of another base than the one the adapters were trained on.
    """

    job: Job
    base: Base
    source: Source
    adapters: Mapping[str, np.ndarray]

    @classmethod
    @contextmanager
    def opened(cls, job: Job, base: Base, adapters: Mapping[str, np.ndarray]) -> Iterator["Merged"]:
        with opened(to_path(base.source), job) as source:
            yield cls(job, base, source, adapters)

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name, without tokens that only pad the vocabulary."""
        return {one.name: one.shape for one in parameters(self.job.decoder, vocab_size(self.job))}

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, name: str) -> np.ndarray:
        here = SingleDeviceSharding(jax.devices()[0])
        like = jax.ShapeDtypeStruct(self._shapes[name], np.float32)
        array = self.source.read_as_saved(name, like, here)
        self.source.check({name: digests([array])[0]}, self.base)
        array = layer_dims.as_wanted(array, like, here)
        stem = name.removesuffix(KERNEL)
        if stem + A in set(self.adapters):
            assert self.job.lora
            a, b = (jnp.asarray(self.adapters[stem + end]) for end in (A, B))
            array = merged(array, a, b, self.job.lora.scale)
        return np.asarray(array)
