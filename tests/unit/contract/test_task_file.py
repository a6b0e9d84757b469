"""Task files of lm-evaluation-harness: what is supported, and how the rest is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import job_of
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.task_file import TaskFile, load_tasks

TASK = """\
task: %s
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, test: [1.jsonl, 2.jsonl]}}
output_type: multiple_choice
test_split: test
doc_to_text: question
doc_to_choice: [yes, no]
doc_to_target: 0
"""
NOT_SUPPORTED = """\
include: base.yaml
task: my task
dataset_path: Rowan/hellaswag
process_docs: !function utils.process_docs
output_type: generate_until
test_splt: test
doc_to_text: "{{question"
doc_to_target: 0.5
doc_to_choice: [1]
dataset_kwargs: {data_files: 3}
filter_list: []
num_fewshot: -1
fewshot_config: {sampler: balanced, split: dev}
gen_prefix: "Answer:"
metric_list:
  - metric: exact_match
  - {metric: acc, aggregation: perplexity}
"""
CONFLICTS = """\
task: other
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl}}
output_type: multiple_choice
doc_to_text: question
doc_to_target: answer
fewshot_split: val
metric_list: [{metric: perplexity}]
"""


def tasks(folder: Path, *texts: str, **changes: Any) -> list[TaskFile]:
    paths = [folder / f"{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    job = job_of(eval={"tasks": list(map(str, paths))}, **changes)
    return [loaded.value for loaded in load_tasks(job)]


def problems(folder: Path, *texts: str, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        tasks(folder, *texts, **changes)
    return [line.removeprefix(f"{folder}/") for line in raised.value.lines]


def test_task_has_the_harness_defaults(tmp_path: Path) -> None:
    (task,) = tasks(tmp_path, TASK % "mine")
    assert (task.target_delimiter, task.fewshot_delimiter) == (" ", "\n\n")
    assert (task.metrics, task.split, task.examples_split) == (["acc", "acc_norm"], "test", "test")
    assert task.dataset_kwargs.by_split == {
        "train": ["train.jsonl"],
        "test": ["1.jsonl", "2.jsonl"],
    }


def test_files_without_a_split_are_those_of_train(tmp_path: Path) -> None:
    text = (TASK % "mine").replace("{train: train.jsonl, test: [1.jsonl, 2.jsonl]}", "a.jsonl")
    (task,) = tasks(tmp_path, text.replace("test_split: test", "test_split: train"))
    assert task.dataset_kwargs.by_split == {"train": ["a.jsonl"]}


def test_all_that_is_not_supported_is_reported_at_once(tmp_path: Path) -> None:
    assert problems(tmp_path, NOT_SUPPORTED, CONFLICTS) == [
        "0.yaml:1: include: not supported. Copy the keys of the other file into this one",
        "0.yaml:2: task: expected text that matches ^[A-Za-z0-9][A-Za-z0-9._-]*$, found 'my task'",
        "0.yaml:3: dataset_path: 'Rowan/hellaswag' is not one of json",
        "0.yaml:4: process_docs: the tag !function is not supported",
        "0.yaml:4: process_docs: runs code of its own, which is not supported. Write the records "
        "to a file beforehand",
        "0.yaml:5: output_type: 'generate_until' is not one of multiple_choice, loglikelihood",
        "0.yaml:6: test_splt: unknown key. Did you mean 'test_split'?",
        "0.yaml:7: doc_to_text: expected a Jinja2 template, found an error in line 1 of it: "
        "unexpected end of template, expected 'end of print statement'",
        "0.yaml:8: doc_to_target: expected a field or a template, a number, or a list of numbers, "
        "found 0.5",
        "0.yaml:9: doc_to_choice: expected a field or a template, or a list of texts, found a list",
        "0.yaml:10: dataset_kwargs.data_files: expected a file, a list of files, or a section of "
        "splits, found 3",
        "0.yaml:11: filter_list: not supported: only likelihoods are compared, and no text is "
        "generated. Remove this key",
        "0.yaml:12: num_fewshot: expected a whole number of at least 0 or null, found -1",
        "0.yaml:13: fewshot_config.sampler: 'balanced' is not one of default, first_n",
        "0.yaml:13: fewshot_config.split: not supported. Set fewshot_split",
        "0.yaml:14: gen_prefix: not supported. Remove this key",
        "0.yaml:16: metric_list.0.metric: 'exact_match' is not one of acc, acc_norm, perplexity",
        "0.yaml:17: metric_list.1.aggregation: expected mean for acc, found perplexity",
        "1.yaml:3: dataset_kwargs: no split to evaluate. Set test_split or validation_split",
        "1.yaml:4: output_type: multiple_choice needs choices. Set doc_to_choice",
        "1.yaml:7: fewshot_split: expected a split of dataset_kwargs.data_files (train), "
        "found 'val'",
        "1.yaml:8: metric_list: expected acc or acc_norm for multiple_choice, found perplexity",
    ]


def test_likelihood_of_a_text_needs_a_text(tmp_path: Path) -> None:
    text = (TASK % "mine").replace("multiple_choice", "loglikelihood")
    assert problems(tmp_path, text) == [
        "0.yaml:8: doc_to_target: expected text for output_type loglikelihood, found 0"
    ]


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, TASK % "mine", TASK % "mine")
    assert found == f"1.yaml:1: task: 'mine' is the name of the task in {tmp_path}/0.yaml, too"


def test_likeliest_tokens_of_a_custom_model_are_not_known(tmp_path: Path) -> None:
    text = (TASK % "mine").replace("multiple_choice", "loglikelihood").replace("0\n", "answer\n")
    model = {"module": "mine.model:build"}
    (found,) = problems(tmp_path, text, model=model)
    assert found.startswith("0.yaml: metric_list: expected only perplexity with a custom model")
    assert tasks(tmp_path, text + "metric_list: [{metric: perplexity}]\n", model=model)


def test_missing_task_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such file"):
        load_tasks(job_of(eval={"tasks": [str(tmp_path / "absent.yaml")]}))
