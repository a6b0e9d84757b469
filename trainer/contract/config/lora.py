"""The job file's `lora`: low-rank adapters, the only weights that are trained."""

from typing import Annotated

from pydantic import Field

from trainer.contract.config.base import Positive, Section


class Lora(Section):
    """The size of the adapters, and the kernels that they adapt."""

    rank: Positive
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="over rank: how much they count; null: as much as rank"
    )
    targets: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        strict=False,
        description="patterns of names, such as layers.attention.*; null: all of attention's and "
        "feed-forward parts' kernels",
    )

    @property
    def scale(self) -> float:
        return 1.0 if self.alpha is None else self.alpha / self.rank
