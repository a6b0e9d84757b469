"""The job file's `distill`: training on the predictions of a teacher."""

from typing import Annotated

from pydantic import Field, field_validator

from trainer.contract.config.base import Section
from trainer.contract.config.checkpoint_ref import PREFIX


class Distill(Section):
    """Knowledge distillation from a trained model."""

    teacher: Annotated[str, Field(min_length=1)] = Field(
        description="Folder of the teacher: of a run, of one of its checkpoints, or of a Hugging "
        "Face model. Its model may have other sizes, but must have the same vocabulary."
    )
    weight: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="Share of the distillation loss. The rest is the share of the cross-entropy of "
        "the corpus.",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Divisor of the logits of both models (arXiv:1503.02531). The higher, the more "
        "the unlikely tokens count.",
    )

    @field_validator("teacher")
    @classmethod
    def _is_a_folder(cls, teacher: str) -> str:
        if teacher.startswith(PREFIX):
            raise ValueError(f"expected a folder, found {teacher!r}")
        return teacher
