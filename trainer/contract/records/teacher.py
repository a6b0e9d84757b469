"""The model of a job's teacher, by the metadata of its checkpoint or by its config.json."""

from pathlib import Path

from trainer.contract.config.errors import Problems
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import Model
from trainer.contract.hugging_face.config import is_hugging_face
from trainer.contract.hugging_face.model_reader import read_model
from trainer.contract.planning.planner import PlanError
from trainer.contract.planning.teacher import job_of_teacher
from trainer.contract.records.checkpoint_metadata import (
    TOKENIZER,
    BrokenError,
    CheckpointMetadata,
    FormatError,
    newest_step,
    read_about,
)
from trainer.contract.records.compatibility import of_its_tokenizer
from trainer.contract.storage.paths import AnyPath, to_path
from trainer.contract.storage.tokenizer_info import (
    VocabularyError,
    has_ids_of,
    vocab_size,
    vocabulary,
)

KEY = "distill.teacher"


def teacher_model(job: Job) -> Model:
    """Returns the model of the teacher as it runs: without dropout, in the job's compute dtype.

    Raises PlanError when there is no such folder, or its model cannot teach the job's model.
    """
    assert job.distill
    try:
        folder = to_path(job.distill.teacher)
        if is_hugging_face(Path(folder)):
            model = _of_hugging_face(Path(folder), job)
        else:
            model = _of_checkpoint(newest_step(folder), job)
    except ConfigError as error:
        raise PlanError([(KEY, line) for line in error.lines]) from None
    except (BrokenError, FormatError, OSError) as error:
        raise PlanError([(KEY, str(error))]) from None
    as_it_runs = {
        "dropout": 0.0,
        "precision": None,
        "compute_dtype": job.decoder.compute_dtype,
        "scan_layers": job.decoder.scan_layers,
    }
    return model.model_copy(update=as_it_runs)


def _of_hugging_face(folder: Path, job: Job) -> Model:
    model = read_model(folder)
    if problems := list(_other_tokens(folder, job, model)):
        raise PlanError(problems)
    return model


def _other_tokens(folder: Path, job: Job, model: Model) -> Problems:
    """Yields (key, message) for each key by which a Hugging Face teacher has another vocabulary."""
    file = folder / TOKENIZER
    try:
        is_same = not file.exists() or has_ids_of(job.data, file)
    except VocabularyError as error:
        yield KEY, str(error)
        return
    size = vocab_size(job_of_teacher(job, model))
    if not is_same:
        yield "data.tokenizer", f"not the teacher's. Set it to {file}"
    elif size != vocab_size(job):
        yield "model.vocab_size", _other_size(folder, size, job)


def _of_checkpoint(folder: AnyPath, job: Job) -> Model:
    about = read_about(folder)
    if problem := _unfit(folder, about):
        raise PlanError([(KEY, problem)])
    if problems := list(_other_vocabulary(folder, about, job)):
        raise PlanError(problems)
    return Model.model_validate(about.job["model"], strict=False)


def _unfit(folder: AnyPath, about: CheckpointMetadata) -> str:
    """Returns why a checkpoint has no decoder that can teach, or ""."""
    if about.base:
        return f"{folder} contains only adapters. Expected the weights of a whole model"
    if "module" in about.job["model"]:
        return f"{folder} is of a custom model. Expected the built-in decoder"
    return ""


def _other_vocabulary(folder: AnyPath, about: CheckpointMetadata, job: Job) -> Problems:
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
        yield "model.vocab_size", _other_size(folder, size, job)


def _other_size(folder: AnyPath, size: int, job: Job) -> str:
    return f"the teacher in {folder} has {size} tokens, found {vocab_size(job)}"
