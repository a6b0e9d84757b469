"""References to a checkpoint of a run in `checkpoint.init_from`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.checkpoint import Checkpoint
from trainer.contract.config.checkpoint_ref import CheckpointRef, parse_checkpoint_ref

RUNS = st.from_regex(r"[A-Za-z0-9./_@-]*[A-Za-z0-9]/[A-Za-z0-9._-]+", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("run:pretrain", CheckpointRef("pretrain")),
        ("run:pretrain@best", CheckpointRef("pretrain", "best")),
        ("run:pretrain@400", CheckpointRef("pretrain", 400)),
        ("run:/data/a@b/runs/x", CheckpointRef("/data/a@b/runs/x")),
        ("run:/data/a@b/runs/x@7", CheckpointRef("/data/a@b/runs/x", 7)),
        ("runs/pretrain", None),
        ("gs://bucket/run:x@best", None),
        ("", None),
    ],
)
def test_a_reference_names_a_run_and_a_checkpoint(text: str, ref: CheckpointRef | None) -> None:
    assert parse_checkpoint_ref(text) == ref


@given(RUNS, st.none() | st.just("best") | st.integers(min_value=0))
def test_any_reference_is_read_back_from_its_text(run: str, at: object) -> None:
    ref = CheckpointRef(run, at)  # type: ignore[arg-type]
    assert parse_checkpoint_ref(str(ref)) == ref


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run:", "expected run:NAME, run:NAME@STEP or run:NAME@best, found 'run:'"),
        ("run:@best", "expected run:NAME"),
        ("run:x@", "expected a step or `best` after the @, found 'run:x@'"),
        ("run:x@newest", "expected a step or `best` after the @"),
        ("run:x@-1", "expected a step or `best` after the @"),
    ],
)
def test_a_bad_reference_is_an_error_of_the_job(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Checkpoint.model_validate({"init_from": text})
