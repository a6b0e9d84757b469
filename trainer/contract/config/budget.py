"""The `budget` section of a job file."""

from typing import Annotated

from pydantic import Field, model_validator

from trainer.contract.config.base import Section

Amount = Annotated[float, Field(gt=0)]


class Budget(Section):
    """Limits of a run over all of its attempts. At the first one, the run saves and stops."""

    hours: Amount | None = Field(
        default=None, description="Hours for which the run may hold hosts. null: no limit."
    )
    chip_hours: Amount | None = Field(
        default=None,
        description="Hours times chips, spares included; CPU devices count as chips. null: no "
        "limit.",
    )
    dollars: Amount | None = Field(
        default=None,
        description="US dollars, by `provider.price_per_chip_hour` of the cluster file or the list "
        "price. null: no limit.",
    )

    @model_validator(mode="after")
    def _limits_something(self) -> "Budget":
        if self.hours is self.chip_hours is self.dollars is None:
            raise ValueError("expected at least one of hours, chip_hours and dollars")
        return self
