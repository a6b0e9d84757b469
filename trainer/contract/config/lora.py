"""The job file's `lora`: low-rank adapters, the only weights that are trained."""

from typing import Annotated

from pydantic import Field

from trainer.contract.config.base import Positive, Section


class Lora(Section):
    """The size of the adapters, and the kernels that they adapt."""

    rank: Positive = Field(description="Rank of the adapters (arXiv:2106.09685).")
    alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Scale of the adapters: their output is multiplied by `alpha / rank`. null: "
        "equal to `rank`.",
    )
    targets: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        strict=False,
        description="Globs of the kernels to adapt, such as `layers.attention.*`. null: all "
        "kernels of attention and MLPs.",
    )

    @property
    def scale(self) -> float:
        return 1.0 if self.alpha is None else self.alpha / self.rank
