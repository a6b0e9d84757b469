"""The section `mesh` of a job file."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.config.base import Positive, Section

AxisSize = Annotated[int, Field(ge=-1)]
PipelineSchedule = Literal["gpipe", "1f1b"]


class Mesh(Section):
    """Mesh axis sizes, and the use of two axes. A size of -1 takes the remaining devices."""

    pipeline: AxisSize = Field(
        default=1,
        description="Number of stages that the layers are split into, across slices. The "
        "micro-batches of `data.grad_accum_steps` pass through them.",
    )
    pipeline_rounds: Positive = Field(
        default=1,
        description="Number of times that a micro-batch passes through all stages of `pipeline`. "
        "A stage has as many groups of layers, and is idle for a smaller part of the time.",
    )
    pipeline_schedule: PipelineSchedule = Field(
        default="gpipe",
        description="Order of the passes on the stages of `pipeline`: the forward pass of all "
        "micro-batches before their backward pass (`gpipe`), or a forward and a backward pass in "
        "turn (`1f1b`), which keeps the activations of fewer micro-batches.",
    )
    data: AxisSize | None = Field(
        default=None,
        description="Number of replicas of the model, across slices. null: the number of slices "
        "that `pipeline` leaves.",
    )
    fsdp: AxisSize = Field(
        default=-1,
        description="Number of parts that weights, moments and the batch are split into (fully "
        "sharded data parallelism). -1: the remaining devices.",
    )
    expert: AxisSize = Field(
        default=1,
        description="Number of parts that the experts of `model.moe` are split into. It also "
        "splits the batch.",
    )
    context: AxisSize = Field(
        default=1, description="Number of parts that each sequence is split into."
    )
    context_attention: Literal["auto", "chunks", "heads"] = Field(
        default="auto",
        description="Attention of a device along `context`: for an early and a late chunk of each "
        "sequence (`chunks`), or for whole sequences and a part of the heads (`heads`). `auto`: "
        "the one that sends fewer bytes, of those that the number of heads allows.",
    )
    tensor: AxisSize = Field(
        default=1,
        description="Number of parts that heads, MLPs and the vocabulary are split into (tensor "
        "parallelism).",
    )
