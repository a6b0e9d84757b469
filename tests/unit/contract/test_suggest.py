"""What a mistyped word was meant to be."""

from trainer.contract.config.errors import suggest


def test_the_nearest_word_is_suggested():
    assert suggest("plann", ["run", "plan", "up"]) == " Did you mean 'plan'?"


def test_capitals_do_not_matter():
    assert suggest("PLAN", ["plan"]) == " Did you mean 'plan'?"


def test_nothing_is_suggested_for_a_word_that_resembles_none():
    assert suggest("xyzzy", ["plan", "up"]) == ""
