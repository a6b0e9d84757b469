"""A job that runs any program: what its file may say, and what a person reads when it is wrong."""

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, dump

GOOD = """\
name: any
command: [python, my_script.py, --rate=0.1]
env: {DATA: /data}
"""
TRAINING = """\
name: run
steps: 10
model: {preset: tiny}
data: {source: stdlib, seq_len: 32, global_batch: 8}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str, *overrides: str) -> Job | CommandJob:
    Path("job.yaml").write_text(text)
    return load_job(Path("job.yaml"), overrides).value


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text, *overrides)
    return caught.value.lines


def test_a_command_makes_the_difference_between_the_two_kinds_of_job() -> None:
    job = loaded(GOOD)
    assert isinstance(job, CommandJob)
    assert job.command == ["python", "my_script.py", "--rate=0.1"]
    assert job.env == {"DATA": "/data"}
    assert isinstance(loaded(TRAINING), Job)


def test_what_a_run_writes_down_is_read_back() -> None:
    job = loaded(GOOD)
    assert loaded(dump(job)) == job


def test_it_can_be_changed_from_the_command_line() -> None:
    job = loaded(GOOD, "name=other", "env.DATA=/more", "retries.failures=0")
    assert isinstance(job, CommandJob)
    assert (job.name, job.env, job.retries.failures) == ("other", {"DATA": "/more"}, 0)


def test_a_job_that_is_of_both_kinds_names_every_key_at_its_line() -> None:
    said = "belongs to training jobs, and this job has a command. Remove one of the two"
    assert problems(TRAINING + "command: [python, x.py]\n") == [
        f"job.yaml:2: steps: {said}",
        f"job.yaml:3: model: {said}",
        f"job.yaml:4: data: {said}",
    ]
    assert problems(GOOD, "mesh.tensor=2") == [f"override mesh.tensor=2: mesh: {said}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("command: python x.py", "expected a list: [python, x.py]"),
        ("command: python x.py 'a b' -n 5", "expected a list: [python, x.py, 'a b', '-n', '5']"),
        ('command: python "x', "expected a list: [python, '\"x']"),
        ("command: []", "the program is missing; expected a list: [python, my_script.py]"),
        ("command: ['', x]", "the program is missing; expected a list: [python, my_script.py]"),
        ("command: null", "expected a list, found nothing"),
        ("command: {python: x}", "expected a list, found a section"),
        (
            'command: [a, "b\\0"]',
            "found a text with the character \\0, which no program can receive",
        ),
    ],
)
def test_a_command_is_a_list_of_words(line: str, message: str) -> None:
    assert problems(f"name: any\n{line}\n") == [f"job.yaml:2: command: {message}"]


def test_words_that_yaml_takes_for_something_else_are_named() -> None:
    assert problems("name: any\ncommand: [python, x.py, -n, 5]\n") == [
        "job.yaml:2: command.3: expected text, found 5. Write '5'"
    ]
    assert problems(GOOD, "env.WORKERS=5") == [
        "override env.WORKERS=5: expected text, found 5. Write '5'"
    ]


def test_what_slipway_sets_itself_is_refused() -> None:
    text = "name: any\ncommand: [x]\nenv: {SLIPWAY_PROCESS_ID: a, JAX_PLATFORMS: cpu, MINE: x}\n"
    said = "SLIPWAY_PROCESS_ID, JAX_PLATFORMS: Slipway sets this itself. Remove it"
    assert problems(text) == [f"job.yaml:3: env: {said}"]


def test_misspelled_key_is_reported_with_suggestion() -> None:
    assert problems(GOOD + "retry: {failures: 0}\n") == [
        "job.yaml:4: retry: unknown key. Did you mean 'retries'?"
    ]


@given(st.lists(st.text("ab '\"\\-=:#,[]{}5", min_size=1), min_size=1))
def test_the_list_that_is_proposed_for_a_line_is_a_command(words: list[str]) -> None:
    (problem,) = problems(dump(CommandJob(name="any", command=["x"])), f"command={quoted(words)}")
    proposed = problem.partition("expected a list: ")[2]
    job = loaded(f"name: any\ncommand: {proposed}\n")
    assert isinstance(job, CommandJob)
    assert job.command == words


def quoted(words: list[str]) -> str:
    """A shell's command line, as a YAML string."""
    return json.dumps(shlex.join(words))
