"""Where a run's checkpoints are."""

from pathlib import Path

import pytest

from tests.support.worlds import tiny_job
from trainer.contract.records.checkpoint_metadata import folder_of


@pytest.mark.parametrize(
    ("storage", "folder"),
    [
        (None, "/runs/here/checkpoints"),
        ("/shared/", "/shared/tiny/checkpoints"),
        ("~/shared", "~/shared/tiny/checkpoints"),
        ("gs://bucket/x", "gs://bucket/x/tiny/checkpoints"),
    ],
)
def test_checkpoints_are_in_the_run_or_in_the_storage(storage: str | None, folder: str) -> None:
    assert folder_of(tiny_job(storage=storage), Path("/runs/here")) == folder
