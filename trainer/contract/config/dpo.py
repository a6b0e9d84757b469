"""The job file's `dpo`: training on pairs of a preferred and a rejected completion."""

from typing import Annotated

from pydantic import Field

from trainer.contract.config.base import Section


class Dpo(Section):
    """Direct preference optimization, with the frozen base of `lora` as the reference."""

    beta: Annotated[float, Field(gt=0)] = Field(
        default=0.1,
        description="Scale of the rewards (arXiv:2305.18290): the higher, the closer the model "
        "stays to its reference.",
    )
