"""What keeps a forecast below a measurement: the seconds of a step, by cause."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.published_compare import Comparison
from benchmarks.published_remat import like_for_like
from benchmarks.published_rows import plan


@dataclass(frozen=True)
class Gap:
    """The seconds by which a forecast step is longer than the measured one."""

    name: str
    """Id of the row, or of its fastest job."""
    step_s: float
    measured_s: float
    recomputation_s: float
    """What the backward pass computes again and theirs does not."""
    kernel_s: float
    """What their attention saves by one kernel for all gradients; below 0 if only ours has it."""

    @property
    def rest_s(self) -> float:
        """All else; below 0 if the forecast is faster apart from the above."""
        return self.step_s - self.measured_s - self.recomputation_s - self.kernel_s


def gap(compared: Comparison) -> Gap | None:
    """Returns the gap of the faster one of a row's jobs; None when it is ahead, or not known."""
    fastest = max(
        filter(None, [compared, compared.best]),
        key=lambda one: one.tokens_per_s_per_chip or 0.0,
    )
    if compared.is_ahead is not False or fastest.result is None:
        return None
    row, step_s, parts = fastest.row, fastest.result.step_time_s, fastest.result.parts
    tokens = row.tokens_per_device * row.devices_per_chip
    measured_s = tokens / fastest.published.tokens_per_s_per_chip
    if row.recomputes is None:
        return Gap(row.id, step_s, measured_s, 0.0, 0.0)
    with TemporaryDirectory() as folder:
        launch = plan(row, Path(folder))
    own_kernels = like_for_like(parts, launch, row.recomputes)
    as_theirs = like_for_like(parts, launch, row.recomputes, is_fused=row.fused_attention)
    return Gap(row.id, step_s, measured_s, step_s - own_kernels, own_kernels - as_theirs)
