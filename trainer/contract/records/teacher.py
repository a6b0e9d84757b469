"""The model of a job's teacher, from the metadata of its checkpoint."""

from collections.abc import Iterator

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import Model
from trainer.contract.planning.planner import PlanError
from trainer.contract.records.checkpoint_metadata import (
    BrokenError,
    CheckpointMetadata,
    FormatError,
    newest_step,
    read_about,
)
from trainer.contract.records.compatibility import of_its_tokenizer
from trainer.contract.storage.paths import AnyPath, to_path
from trainer.contract.storage.tokenizer_info import vocab_size, vocabulary

KEY = "distill.teacher"


def teacher_model(job: Job) -> Model:
    """Returns the model of the teacher as it runs: without dropout, in the job's compute dtype.

    Raises PlanError when there is no such checkpoint, or it cannot teach the job's model.
    """
    assert job.distill
    try:
        folder = newest_step(to_path(job.distill.teacher))
        about = read_about(folder)
    except (ConfigError, BrokenError, FormatError, OSError) as error:
        raise PlanError([(KEY, str(error))]) from None
    if problem := _unfit(folder, about):
        raise PlanError([(KEY, problem)])
    if problems := list(_other_vocabulary(folder, about, job)):
        raise PlanError(problems)
    model = Model.model_validate(about.job["model"], strict=False)
    as_it_runs = {
        "dropout": 0.0,
        "precision": None,
        "compute_dtype": job.decoder.compute_dtype,
        "scan_layers": job.decoder.scan_layers,
    }
    return model.model_copy(update=as_it_runs)


def _unfit(folder: AnyPath, about: CheckpointMetadata) -> str:
    """Returns why a checkpoint has no decoder that can teach, or ""."""
    if about.base:
        return f"{folder} contains only adapters. Expected the weights of a whole model"
    if "module" in about.job["model"]:
        return f"{folder} is of a custom model. Expected the built-in decoder"
    return ""


def _other_vocabulary(
    folder: AnyPath, about: CheckpointMetadata, job: Job
) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for each key by which the teacher has another vocabulary."""
    try:
        data = of_its_tokenizer(folder, about, job).job["data"]
    except ConfigError as error:
        yield "data.tokenizer", f"not the teacher's: {error}"
        return
    ours = job.data.model_dump(mode="json")
    differing = [key for key in ("tokenizer", "eos_token") if data[key] != ours[key]]
    for key in differing:
        yield f"data.{key}", f"the teacher in {folder} has {data[key]}, found {ours[key]}"
    if differing:
        return
    size = about.job["model"]["vocab_size"] or vocabulary(job.data).size
    if size != vocab_size(job):
        yield (
            "model.vocab_size",
            f"the teacher in {folder} has {size} tokens, found {vocab_size(job)}",
        )
