"""Whether groups along `data` add up gradients by themselves: see trainer/step/group_sums.py."""

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.planning import mesh_layout
from trainer.contract.planning.local_sums import sums_locally
from trainer.contract.planning.plan import Plan


def sums_by_group(job: Job, plan: Plan) -> bool:
    """Returns whether each group along `data` adds up the gradients of its own rows.

    Otherwise all devices sum the gradients of each micro-batch. A custom model lays out its rows
    itself. Within a group, XLA cannot partition all programs: with `fsdp` and `tensor` it aborts at
    the gradient of the embedding, and with `model.offload` at copies to the host. JAX (0.10 to
    0.12) cannot lower the layout of gradients that are scattered by rows of chips.
    """
    has_groups = plan.mesh["data"] > 1 and plan.batch.grad_accum_steps > 1
    splits_only_rows = plan.mesh["data"] * plan.mesh["fsdp"] == plan.world.devices
    is_by_row = mesh_layout.fsdp_rows(plan.world, plan.mesh) > 1
    can_group = isinstance(job.model, Model) and not job.model.offload and not is_by_row
    return has_groups and splits_only_rows and can_group and not sums_locally(job, plan)
