"""YAML 1.2 text to values and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.yaml import NotYamlError, dump, parse

NUMBERS = [("3e-4", 3e-4), ("1e3", 1000.0), ("-7", -7), ("0x1F", 31), ("0o17", 15), (".5", 0.5)]
WORDS = ["on", "yes", "no", "1_000", "0777x", "1:30", "2020-01-01", "=", "0b11", "<<"]


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_a_number_of_the_core_schema_is_a_number(text, number):
    value = parse(text).value
    assert value == number
    assert type(value) is type(number)


@pytest.mark.parametrize("word", WORDS)
def test_what_only_yaml_1_1_gives_a_meaning_is_text(word):
    assert parse(word).value == word


def test_a_leading_zero_does_not_make_an_octal_number():
    assert parse("010").value == 10


def test_a_quoted_number_is_text():
    assert parse("'5'").value == "5"


@pytest.mark.parametrize(("text", "value"), [("", None), ("~", None), ("TRUE", True)])
def test_words_of_the_core_schema_have_their_meaning(text, value):
    assert parse(text).value is value


def test_every_key_and_item_has_the_line_on_which_it_starts():
    lines = parse("a: 1\nb:\n  c: [x,\n    y]\n").lines
    assert lines == {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "c", 0): 3, ("b", "c", 1): 4}


def test_a_key_that_stands_twice_is_a_problem_with_both_lines():
    tree = parse("a: {b: 1}\nc: 2\na: 3\n")
    assert tree.problems == [(("a",), 3, "duplicate key, first set on line 1")]


def test_the_same_key_in_two_sections_is_no_problem():
    assert not parse("a: {x: 1}\nb: {x: 2}").problems


def test_an_alias_repeats_what_it_names():
    assert parse("a: &it {x: 1}\nb: *it").value == {"a": {"x": 1}, "b": {"x": 1}}


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}", "&a {x: {y: [*a]}}"])
def test_an_alias_that_contains_itself_is_refused(text):
    with pytest.raises(NotYamlError, match="contains itself"):
        parse(text)


def test_aliases_that_multiply_without_end_are_refused():
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    with pytest.raises(NotYamlError, match="values"):
        parse(f"a0: &a0 x\n{levels}")


def test_endless_nesting_is_refused():
    with pytest.raises(NotYamlError, match="nested too deeply"):
        parse("[" * 5000)


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "a:\n\t- b", "--- a\n--- b", "'", "\0"])
def test_text_that_is_no_yaml_is_refused(text):
    with pytest.raises(NotYamlError):
        parse(text)


def test_the_line_of_a_syntax_error_is_known():
    with pytest.raises(NotYamlError) as caught:
        parse("a: 1\nb: c: d\n")
    assert caught.value.line == 2


def test_a_tag_is_a_problem():
    assert "!thing" in parse("a: !thing 1").problems[0][2]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.integers()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_dumped_values_read_back_equal(value):
    assert parse(dump(value)).value == value


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        parse(text)
    except NotYamlError as error:
        assert str(error)
