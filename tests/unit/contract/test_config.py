"""What a person reads when a job file is wrong, and what a right one becomes."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from trainer.contract.config.command import CommandJob
from trainer.contract.config.data import TrainTokenizer
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, dump, load

GOOD = """\
name: run
steps: 10
model: {layers: 2, d_model: 64, heads: 4, d_ff: 128}
data: {source: stdlib, seq_len: 32, global_batch: 8}
optimizer:
  learning_rate: 3e-4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(text: str | bytes, *overrides: str) -> list[str]:
    Path("job.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(Path("job.yaml"), Job, overrides)
    return caught.value.lines


def loaded(*overrides: str, text: str = GOOD):
    Path("job.yaml").write_text(text)
    return load(Path("job.yaml"), Job, overrides)


pytestmark = pytest.mark.usefixtures("folder")


def test_a_run_ends_with_the_step_that_it_stops_after(folder):
    assert loaded().value.last_step == 10
    assert loaded("stop_after_step=4").value.last_step == 4


def test_a_stop_after_the_last_step_is_an_error(folder):
    assert problems(GOOD, "stop_after_step=11") == [
        "override stop_after_step=11: the run has only 10 steps, found 11"
    ]


def test_a_right_file_becomes_a_job():
    job = loaded().value
    assert (job.name, job.steps, job.optimizer.learning_rate) == ("run", 10, 3e-4)


def test_a_missing_file_names_the_one_that_was_meant():
    Path("jobs.yaml").touch()
    with pytest.raises(ConfigError) as caught:
        load(Path("job.yaml"), Job)
    assert caught.value.lines == ["job.yaml: no such file. Did you mean 'jobs.yaml'?"]


def test_a_folder_is_refused():
    Path("job.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"job\.yaml: a folder, not a file"):
        load(Path("job.yaml"), Job)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_refused(text):
    assert problems(text) == ["job.yaml: the file is empty"]


def test_bytes_that_are_no_text_are_refused_with_the_line():
    assert problems(b"name: a\nsteps: \xff\n") == ["job.yaml:2: not text (UTF-8): byte 15"]


def test_a_byte_order_mark_is_no_problem():
    assert loaded(text="\ufeff" + GOOD).value.name == "run"


def test_text_that_is_no_yaml_is_refused_with_the_line():
    (problem,) = problems("name: a\nsteps: b: c\n")
    assert problem.startswith("job.yaml:2: not YAML: ")


def test_a_tab_gets_a_hint():
    assert problems("model:\n\tlayers: 2\n")[0].endswith("Indent with spaces, not tabs")


def test_a_recursive_alias_is_refused_with_the_line():
    assert problems("name: x\nmodel: &m {layers: *m}\n") == [
        "job.yaml:2: an alias (*name) that contains itself"
    ]


@pytest.mark.parametrize(("text", "what"), [("- a\n", "a list"), ("hello\n", "'hello'")])
def test_a_file_that_holds_no_keys_is_refused(text, what):
    assert problems(text) == [f"job.yaml: expected keys and values (key: value), found {what}"]


def test_an_unknown_key_names_the_nearest_known_one():
    assert problems(GOOD + "  learning_rte: 1\n") == [
        "job.yaml:7: optimizer.learning_rte: unknown key. Did you mean 'learning_rate'?"
    ]


def test_a_key_in_the_wrong_section_names_the_right_one():
    assert problems(GOOD + "dropout: 0.1\n") == [
        "job.yaml:7: dropout: unknown key. Did you mean 'model.dropout'?"
    ]


def test_a_key_that_stands_twice_is_refused_with_both_lines():
    assert problems(GOOD + "steps: 20\n") == [
        "job.yaml:7: steps: duplicate key, first set on line 2"
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.global_batch=-3", "expected a whole number of at least 1, found -3"),
        ("steps=ten", "expected a whole number of at least 1, found 'ten'"),
        ("steps=1e3", "expected a whole number of at least 1, found 1000.0. Write 1000"),
        ("steps=1_000", "expected a whole number of at least 1, found '1_000'. Write 1000"),
        ("steps=true", "expected a whole number of at least 1, found true"),
        ("steps=", "expected a whole number of at least 1, found nothing"),
        ("steps=[1]", "expected a whole number of at least 1, found a list"),
        ("model.dropout=1", "expected a number of at least 0 and below 1, found 1"),
        (
            f"seed={2**63}",
            f"expected a whole number of at least 0 and below {2**63}, found {2**63}",
        ),
        ("optimizer.learning_rate=.inf", "expected a number above 0, found inf"),
        ("model.scan_layers=on", "expected true or false, found 'on'. Write true"),
        (
            "model.remat=ful",
            "'ful' is not one of none, dots, attention, full. Did you mean 'full'?",
        ),
        ("model.remat=3", "3 is not one of none, dots, attention, full"),
        (
            "name=3",
            "expected text that matches ^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$, found 3. Write '3'",
        ),
        ("model=4", "expected a section (key: value), found 4"),
        ("mesh=", "expected a section (key: value), found nothing"),
        ("mesh.dta=1", "unknown key. Did you mean 'data'?"),
        (
            "checkpoint.every_minutes=often",
            "expected a number above 0 or auto or null, found 'often'",
        ),
        ("checkpoint.every_minutes=0", "expected a number above 0 or auto or null, found 0"),
        (
            "checkpoint.in_memory_every_steps=x",
            "expected a whole number of at least 1 or auto or null, found 'x'",
        ),
        ("checkpoint.every=auto", "unknown key. Set every_steps, or every_minutes: auto or N"),
        ("steps.x=1", "steps is 10, not a section"),
        ("steps", "expected key=value, such as optimizer.learning_rate=1e-3"),
        ("=3", "expected key=value, such as optimizer.learning_rate=1e-3"),
        ("a..b=3", "expected key=value, such as optimizer.learning_rate=1e-3"),
    ],
)
def test_a_wrong_override_says_what_was_found_and_meant(override, message):
    assert problems(GOOD, override) == [f"override {override}: {message}"]


def test_an_automatic_interval_excludes_a_number_of_steps():
    assert problems(GOOD, "checkpoint={every_steps: 100, every_minutes: auto}") == [
        "override checkpoint={every_steps: 100, every_minutes: auto}: checkpoint.every_minutes: "
        "auto requires every_steps: null, found 100"
    ]


def test_an_override_that_is_no_yaml_is_refused():
    (problem,) = problems(GOOD, "name=[a")
    assert problem.startswith("override name=[a: not YAML: ")


def test_a_wrong_key_inside_an_overridden_section_is_named():
    assert problems(GOOD, "mesh={tensr: 1}") == [
        "override mesh={tensr: 1}: mesh.tensr: unknown key. Did you mean 'tensor'?"
    ]


def test_missing_keys_are_all_named():
    assert problems("name: x\nsteps: 1\nmodel: {preset: tiny}\ndata: {source: stdlib}\n") == [
        "job.yaml: data.seq_len: missing",
        "job.yaml: data.global_batch: missing",
    ]


def test_a_wrong_value_is_named_before_what_could_not_follow_from_it():
    assert problems(GOOD, "model.heads=-4")[0] == (
        "override model.heads=-4: expected a whole number of at least 1, found -4"
    )


def test_all_problems_are_reported_in_order_of_file():
    text = GOOD.replace("steps: 10", "steps: -1").replace("stdlib", "stdlb") + "sed: 0\nname: y\n"
    assert [line.partition(": ")[0] for line in problems(text, "mesh.fsdp=x")] == [
        "job.yaml:2",
        "job.yaml:4",
        "job.yaml:7",
        "job.yaml:8",
        "override mesh.fsdp=x",
    ]


def test_a_whole_number_will_do_for_a_fraction():
    assert loaded("optimizer.weight_decay=0").value.optimizer.weight_decay == 0


def test_an_override_makes_the_section_that_the_file_lacks():
    assert loaded("mesh.tensor=2").value.mesh.tensor == 2


def test_an_override_leaves_the_rest_of_its_section():
    optimizer = loaded("optimizer.beta1=0.8").value.optimizer
    assert (optimizer.beta1, optimizer.learning_rate) == (0.8, 3e-4)


def test_null_turns_an_optional_section_off():
    assert loaded("eval=null").value.eval is None


def test_of_two_overrides_of_a_key_the_later_one_counts():
    assert loaded("steps=3", "steps=4").value.steps == 4


def test_an_override_may_hold_an_equals_sign():
    sample = loaded("sample.prompt='a=b'").value.sample
    assert sample and sample.prompt == "a=b"


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("steps", "job.yaml:2"),
        ("optimizer.learning_rate", "job.yaml:6"),
        ("optimizer.beta1", "job.yaml:5"),
        ("mesh.tensor", "override mesh.tensor=2"),
        ("data.seq_len", "override data={source: stdlib, seq_len: 8, global_batch: 8}"),
        ("eval.batches", "job.yaml"),
    ],
)
def test_a_key_is_found_where_it_was_written(key, place):
    job = loaded("mesh.tensor=2", "data={source: stdlib, seq_len: 8, global_batch: 8}")
    assert str(job.where(key)) == place


def test_control_characters_do_not_reach_the_terminal():
    (problem,) = problems(GOOD + '"a\\eb": 1\n')
    assert problem == "job.yaml:7: a\\x1bb: unknown key"


def test_a_resolved_job_reads_back_equal():
    job = loaded("optimizer.eps=1e-10", "sample.prompt='a: \"b\"\\n'", "eval=null").value
    assert loaded(text=dump(job)).value == job


def test_a_resolved_job_holds_every_default():
    assert "final_fraction: 0.1" in dump(loaded().value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.tokenizer={train: 4}", "expected a whole number of at least 257, found 4"),
        ("data.tokenizer={trian: 400}", "data.tokenizer.trian: unknown key. Did you mean 'train'?"),
        ("data.tokenizer=5", "expected text of at least 1 characters, found 5. Write '5'"),
    ],
)
def test_only_intended_variant_of_choice_is_reported(override, message):
    assert any(message in problem for problem in problems(GOOD, override))


def test_a_tokenizer_is_named_or_trained():
    assert loaded("data.tokenizer=a.json").value.data.tokenizer == "a.json"
    job = loaded("data.tokenizer={train: 400}").value
    assert job.data.tokenizer == TrainTokenizer(train=400)
    Path("again.yaml").write_text(dump(job))
    assert load(Path("again.yaml"), Job).value == job


PARTS = "{source: stdlib}, {source: text, path: a.txt, weight: 3}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            f"source: stdlib, mixture: [{PARTS}]",
            "data.source: a mixture lists its own sources",
        ),
        ("source: mixture", "data.mixture: missing: source: mixture requires a list of sources"),
        (
            "mixture: [{source: stdlib}, {source: stdlib}]",
            "data.mixture: two sources are named 'stdlib'",
        ),
        ("mixture: [{source: stdlib, wieght: 2}, {source: text}]", "Did you mean 'weight'?"),
        ("mixture: [{source: stdlib, weight: 0.5}, {source: text}]", "data.mixture.0.weight: "),
    ],
)
def test_wrong_mixture_is_reported(data, message):
    text = GOOD.replace("source: stdlib", data)
    assert any(message in problem for problem in problems(text))


def test_a_mixture_is_a_source():
    job = loaded(text=GOOD.replace("source: stdlib", f"mixture: [{PARTS}]")).value
    assert (job.data.source, [part.source for part in job.data.parts]) == (
        "mixture",
        ["stdlib", "text"],
    )
    Path("again.yaml").write_text(dump(job))
    assert load(Path("again.yaml"), Job).value == job


@pytest.mark.parametrize("schema", [Job, CommandJob])
def test_every_key_has_a_description_that_is_a_sentence(schema: type[BaseModel]) -> None:
    """Descriptions become the reference page and the hover texts of editors."""
    whole = schema.model_json_schema()
    sections = [whole, *whole["$defs"].values()]
    described = [
        (f"{one['title']}.{key}", facts.get("description", ""))
        for one in sections
        for key, facts in one.get("properties", {}).items()
    ]
    assert described
    assert [pair for pair in described if not re.fullmatch(r"[A-Z`].*\.", pair[1])] == []
