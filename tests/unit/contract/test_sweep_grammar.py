"""What may follow KEY= in a sweep, on the command line and in the `sweep` section."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, dump, load
from trainer.contract.config.sweep import Draw, parse_axis
from trainer.contract.config.yaml import dump_inline

JOB = """\
name: run
steps: 10
model: {preset: tiny}
data: {source: stdlib, seq_len: 32, global_batch: 8}
sweep:
"""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("4,8", (4, 8)),
        ("1e-3, 3e-3", (0.001, 0.003)),
        ("adamw,muon", ("adamw", "muon")),
        ("4", (4,)),
        ("null,1.0", (None, 1.0)),
        ("{a: 1, b: 2},{a: 3}", ({"a": 1, "b": 2}, {"a": 3})),
        ("[1, 2],[3]", ([1, 2], [3])),
        ("'a, b',c", ("a, b", "c")),
        ("it's,here", ("it's", "here")),
        ("log(1e-4,1e-2)", Draw("log", 1e-4, 1e-2)),
        ("uniform(0, 0.2)", Draw("uniform", 0.0, 0.2)),
        ("'log(1,2)'", ("log(1,2)",)),
    ],
)  # fmt: skip
def test_values_are_a_list_or_a_draw(text: str, axis: object) -> None:
    assert parse_axis(text) == axis


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4,,8", "an empty value"),
        ("4,", "an empty value"),
        ("lgo(1,2)", r"expected log\(LOW, HIGH\) or uniform\(LOW, HIGH\), found 'lgo\(1,2\)'"),
        ("log(1e-4)", "expected two numbers"),
        ("log(a,b)", "expected two numbers"),
        ("uniform(0,.inf)", "expected two numbers"),
        ("uniform(2,1)", "expected LOW below HIGH"),
        ("log(0,1)", "expected LOW above 0"),
        ("1,log(1,2)", "a draw is not a value of a list"),
        ("[1,2", "not YAML"),
    ],
)
def test_bad_values_are_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_axis(text)


@given(st.lists(VALUES, min_size=2, max_size=4))
def test_any_values_are_read_back_from_a_list(values: list[object]) -> None:
    assert parse_axis(",".join(map(dump_inline, values))) == tuple(values)


@given(st.text(max_size=30))
def test_any_text_has_values_or_an_error(text: str) -> None:
    try:
        parse_axis(text)
    except ValueError as error:
        assert str(error)


def loaded(tmp_path: Path, section: str) -> Job:
    path = tmp_path / "job.yaml"
    path.write_text(JOB + section)
    return load(path, Job).value


def test_the_section_takes_lists_and_the_text_of_the_command_line(tmp_path: Path) -> None:
    job = loaded(
        tmp_path,
        "  values:\n"
        "    optimizer.learning_rate: log(1e-4, 1e-2)\n"
        "    model.layers: [4, 8]\n"
        "    seed: 1,2\n"
        "  samples: 3\n",
    )
    assert job.sweep and job.sweep.axes == {
        "optimizer.learning_rate": Draw("log", 1e-4, 1e-2),
        "model.layers": (4, 8),
        "seed": (1, 2),
    }


def test_the_resolved_job_of_a_point_has_no_section(tmp_path: Path) -> None:
    job = loaded(tmp_path, "  values: {seed: [1, 2]}\n")
    assert "sweep" not in dump(job)


def test_each_problem_of_the_section_names_its_line(tmp_path: Path) -> None:
    section = "  values:\n    seed: log(1)\n    name: [a, b]\n    steps: {}\n  sample: 3\n"
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, section)
    lines = [problem.partition("job.yaml")[2] for problem in caught.value.lines]
    assert lines == [
        ":7: sweep.values.seed: expected two numbers, log(LOW, HIGH), found 'log(1)'",
        ":8: sweep.values.name: a point is named by the sweep. Set the sweep's name with name=...",
        ":9: sweep.values.steps: expected a list of values, or log(LOW, HIGH) or "
        "uniform(LOW, HIGH), found a section",
        ":10: sweep.sample: unknown key. Did you mean 'samples'?",
    ]
