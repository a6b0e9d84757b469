"""Which checkpoints stay."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.checkpoint import Checkpoint
from trainer.contract.records.checkpoint_metadata import Score, expired

SCORES = st.lists(
    st.builds(Score, st.integers(1, 50), st.none() | st.floats(0, 9)),
    unique_by=lambda score: score.step,
)
POLICIES = st.builds(
    lambda **keys: Checkpoint(every_steps=1, **keys),
    keep=st.integers(1, 5),
    keep_every_steps=st.none() | st.integers(1, 10),
    keep_best=st.integers(0, 3),
)


@given(SCORES, POLICIES)
def test_what_stays_is_what_the_policy_names(scores, policy):
    kept = {score.step for score in scores} - set(expired(scores, policy))
    newest = sorted((score.step for score in scores), reverse=True)[: policy.keep]
    rated = [score for score in scores if score.eval_loss is not None]
    best = sorted(rated, key=lambda score: (score.eval_loss, -score.step))[: policy.keep_best]
    every = policy.keep_every_steps
    marked = {score.step for score in scores if every and score.step % every == 0}
    assert kept == {*newest, *marked, *(score.step for score in best)}


@given(SCORES, POLICIES)
def test_the_newest_always_stays(scores, policy):
    if scores:
        assert max(score.step for score in scores) not in expired(scores, policy)


@given(SCORES, POLICIES, st.integers(0, 50))
def test_the_newest_that_a_check_of_hosts_has_passed_stays(scores, policy, checked_step):
    usual, gone = expired(scores, policy), expired(scores, policy, checked_step)
    passed = max((score.step for score in scores if score.step <= checked_step), default=None)
    assert set(gone) == set(usual) - {passed}


@given(SCORES, POLICIES)
def test_what_has_stayed_once_stays_until_a_new_one_comes(scores, policy):
    gone = set(expired(scores, policy))
    stayed = [score for score in scores if score.step not in gone]
    assert expired(stayed, policy) == []
