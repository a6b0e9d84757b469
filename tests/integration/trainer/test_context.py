"""Attention along `context`, by chunks and by heads: the numbers of one device."""

import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.data.packing import in_order_of_chunks

STEPS = 20
MESHES = {
    "context 2": (2, {"context": 2}),
    "context 4": (4, {"context": 4}),
    "fsdp 2, context 2": (4, {"context": 2}),
    "fsdp 2, context 2, by heads": (4, {"context": 2, "context_attention": "heads"}),
}
MODEL = {"sliding_window": 8, "global_every": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Documents that are shorter than a sequence, and some that are longer."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(400):
        words = " ".join(str(number * factor) for factor in range(1 + number % 13))
        (folder / f"{number:03}.txt").write_text(words)
    return f"{folder}/*.txt"


def job(corpus, **changes):
    return job_of(steps=STEPS, model=MODEL, data={"source": "text", "path": corpus}, **changes)


@pytest.mark.parametrize(("devices", "mesh"), MESHES.values(), ids=MESHES)
def test_losses_of_packed_documents_and_windows_are_those_of_one_device(corpus, devices, mesh):
    alone = bench(job(corpus))
    assert np.asarray(alone.batch(1).segments).max() >= 2
    split = bench(job(corpus, mesh=mesh), devices)
    by_heads = mesh.get("context_attention") == "heads"
    assert split.plan.batch.chunks == (1 if by_heads else 2 * mesh["context"])
    for here, there in zip(split.run(STEPS)[1], alone.run(STEPS)[1], strict=True):
        np.testing.assert_allclose(here.loss, there.loss, rtol=1e-5)
        np.testing.assert_allclose(here.grad_norm, there.grad_norm, rtol=1e-3)
        assert here.examples == there.examples


def test_a_batch_has_the_chunks_of_each_device_side_by_side(corpus):
    whole = bench(job(corpus)).batch(3)
    split = bench(job(corpus, mesh={"context": 4}), 4).batch(3)
    for name, array in whole._asdict().items():
        ordered = array if name == "examples" else in_order_of_chunks(np.asarray(array), 8)
        np.testing.assert_array_equal(getattr(split, name), ordered)
    first = split.positions.sharding.addressable_devices_indices_map(split.positions.shape)
    assert len({str(index) for index in first.values()}) == 4
