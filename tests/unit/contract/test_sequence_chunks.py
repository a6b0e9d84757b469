"""Attention along `context`: by chunks or by heads, and its work on the busiest device."""

from typing import Any

import numpy as np
import pytest

from tests.support.jobs import TINY, job_of
from trainer.contract.config.model import Model
from trainer.contract.planning import sequence_chunks


def test_each_device_has_an_early_and_a_late_chunk() -> None:
    assert sequence_chunks.order(8) == [0, 7, 1, 6, 2, 5, 3, 4]
    assert sequence_chunks.order(1) == [0]


def count(context: int, tensor: int = 1, *, asked: str = "auto", **model: Any) -> int:
    job = job_of(model=model, mesh={"context_attention": asked})
    return sequence_chunks.count(job, {"context": context, "tensor": tensor})


def test_a_custom_model_keeps_the_order_of_positions() -> None:
    assert count(4) == 8
    assert count(1) == count(4, module="my:model") == 1


def test_heads_are_exchanged_where_they_divide_and_fewer_bytes_are_sent() -> None:
    # 2 H + 2 K = 128 for 3 / 4 of the tokens of a device, or 2 K = 64 for 3 times as many.
    many: dict[str, Any] = {"heads": 32, "kv_heads": 32}
    assert count(4, **many) == 1
    assert count(4, asked="chunks", **many) == 8
    assert count(4, 16, **many) == 8
    # 2 H + 2 K = 80 for 3 / 4, or 2 K = 16 for 3 times as many.
    few: dict[str, Any] = {"heads": 32, "kv_heads": 8}
    assert count(4, **few) == 8
    assert count(4, asked="heads", **few) == 1
    assert count(8, **few) == 1


@pytest.mark.parametrize(
    "sizes",
    [{}, {"sliding_window": 24}, {"sliding_window": 8, "global_every": 2}, {"sliding_window": 99}],
)
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_busiest_share_is_that_of_the_masks(sizes, devices) -> None:
    model, length = Model.model_validate(TINY | sizes), 64
    chunks = 2 * devices if devices > 1 else 1
    distance = np.arange(length)[:, None] - np.arange(length)
    windows = [model.window_of(layer) or length for layer in range(model.layers)]
    masks = [(distance >= 0) & (distance < window) for window in windows]
    seen = np.sum(masks, axis=(0, 2))
    by_chunk = seen.reshape(chunks, -1).sum(axis=1)[sequence_chunks.order(chunks)]
    by_device = by_chunk.reshape(devices, -1).sum(axis=1)
    found = sequence_chunks.busiest_share(model, length, chunks)
    assert found == pytest.approx(by_device.max() / by_device.mean())
    assert sizes or found == 1
