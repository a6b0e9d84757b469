"""Sizes that the forecast of a host's memory repeats are those of the code that it describes."""

from trainer.checkpoint import saver, tree
from trainer.contract.estimates import host_memory
from trainer.data import pipeline, token_shards
from trainer.hugging_face import exporter


def test_sizes_of_the_forecast_are_those_of_the_trainer() -> None:
    assert host_memory.CHUNK_BYTES == saver.CHUNK_BYTES
    assert host_memory.RESTORE_PARTS == tree.PARTS
    assert pipeline.READ.prefetch_buffer_size == host_memory.PREFETCHED_BATCHES
    assert host_memory.TEXT_SHARD_BYTES == token_shards.SHARD_BYTES
    assert host_memory.EXPORT_FILE_BYTES == exporter.SHARD_BYTES
