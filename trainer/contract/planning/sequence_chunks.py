"""How a `context` axis splits attention: by chunks of sequences, or by heads.

A position attends to all earlier ones, so late positions have more work. Each sequence is cut into
two chunks per device: device i of C has chunk i and chunk 2 C - 1 - i, an early and a late one.
All of them have the same work then, as they have when each has whole sequences of some heads.

References:
    Llama 3, section 3.3.2, https://arxiv.org/abs/2407.21783
"""

from collections.abc import Mapping

from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel, Model

PER_DEVICE = 2
"""Chunks of a device along `context`."""


def count(job: Job, mesh: Mapping[str, int]) -> int:
    """Returns the chunks of a sequence; 1: devices along `context` have parts of it in order.

    A custom model may compute its causal mask from the order of the positions. Attention by heads
    sees whole sequences.
    """
    is_alone = mesh["context"] == 1 or isinstance(job.model, CustomModel)
    return 1 if is_alone or by_heads(job, mesh) else PER_DEVICE * mesh["context"]


def by_heads(job: Job, mesh: Mapping[str, int]) -> bool:
    """Returns whether an all-to-all gives each device along `context` whole sequences of its heads.

    With H query heads and K of keys, it sends (C - 1) / C of 2 H + 2 K vectors per token and pass;
    gathering keys and values for the chunks sends C - 1 times 2 K.

    References:
        DeepSpeed Ulysses: https://arxiv.org/abs/2309.14509
    """
    if job.mesh.context_attention != "auto":
        return job.mesh.context_attention == "heads"
    model, parts = job.decoder, mesh["context"]
    sends_less = model.heads + model.kv_heads < model.kv_heads * parts
    return sends_less and model.kv_heads % (parts * mesh["tensor"]) == 0


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
