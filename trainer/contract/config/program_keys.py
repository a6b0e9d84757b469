"""The keys of a job that its compiled programs depend on."""

from trainer.contract.config.job import Job
from trainer.contract.config.optimizer import SCHEDULE_NUMBERS

WITHOUT_EFFECT = {
    "name", "storage", "after", "retries", "deadlines", "secrets", "priority", "preemptible",
    "budget", "notify", "sweep", "steps", "stop_after_step", "log_every", "tensorboard", "wandb",
    "profile", "eval", "checkpoint", "on_spike", "integrity",
}  # fmt: skip
"""Keys of a job that change no program."""
PARTS_WITHOUT_EFFECT = {
    "optimizer": SCHEDULE_NUMBERS,
    "distill": {"teacher"},
    "data": {
        "source", "path", "mixture", "text_field", "fields", "dtype", "max_bad_records",
        "validation_fraction",
    },
}  # fmt: skip
"""Keys of its sections that change none either."""


def program_keys(job: Job) -> str:
    """Returns the values, as JSON, of the keys that the programs of a job depend on.

    Programs take the seed as an argument, except those of steps that draw random numbers.
    """
    left_out = {*WITHOUT_EFFECT} if job.is_random else {*WITHOUT_EFFECT, "seed"}
    return job.model_dump_json(exclude={**dict.fromkeys(left_out, True), **PARTS_WITHOUT_EFFECT})
