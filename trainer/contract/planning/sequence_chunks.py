"""Chunks of sequences, which give every device along `context` the same work of attention.

A position attends to all earlier ones, so late positions have more work. Each sequence is cut into
two chunks per device: device i of C has chunk i and chunk 2 C - 1 - i, an early and a late one.

References:
    Llama 3, section 3.3.2, https://arxiv.org/abs/2407.21783
"""

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model

PER_DEVICE = 2
"""Chunks of a device along `context`."""


def count(job: Job, devices: int) -> int:
    """Returns the chunks of a sequence on that number of devices along `context`; 1: no chunks.

    A custom model may compute its causal mask from the order of the positions, and keeps it.
    """
    return PER_DEVICE * devices if devices > 1 and isinstance(job.model, Model) else 1


def order(chunks: int) -> list[int]:
    """Returns the numbers of the chunks in the order of the devices: 0, n - 1, 1, n - 2 and on."""
    pairs = [(early, chunks - 1 - early) for early in range(chunks // PER_DEVICE)]
    return [number for pair in pairs for number in pair] or [0]


def busiest_share(model: Model, length: int, chunks: int) -> float:
    """Returns attention's work on the busiest device along `context`, relative to the mean.

    The work is the number of pairs of a query and a key that the masks of all layers leave. The
    boundaries of documents, which leave fewer, are not known.
    """
    size = length // chunks
    windows = [model.window_of(layer) or length for layer in range(model.layers)]
    until = [sum(_pairs(size * chunk, window) for window in windows) for chunk in range(chunks + 1)]
    by_chunk = [until[number + 1] - until[number] for number in order(chunks)]
    by_device = [sum(by_chunk[at : at + PER_DEVICE]) for at in range(0, chunks, PER_DEVICE)]
    return max(by_device) * len(by_device) / sum(by_device)


def _pairs(positions: int, window: int) -> int:
    """Returns the number of keys that the first positions of a sequence attend to, added up."""
    first = min(positions, window)
    return first * (first + 1) // 2 + (positions - first) * window
