"""The likely best alternative first; memory by a formula."""

import math

from tests.support.llama_jobs import job_of, world_of
from tests.support.worlds import CORPUS, V4_32, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.estimates.memory import Footprint, footprint
from trainer.contract.estimates.search import Ranking, rank
from trainer.contract.planning import optimizer_state
from trainer.contract.planning.planner import resolve


def needed(job: Job, name: str = "v5p-64") -> Footprint:
    return footprint(job, resolve(job, world_of(name), CORPUS))


def ranked(job: Job, name: str) -> Ranking:
    found = rank(job, resolve(job, world_of(name), CORPUS))
    assert found is not None
    return found


def in_micro_batches(job: Job, count: int) -> Job:
    data = job.data.model_copy(update={"grad_accum_steps": count})
    return job.model_copy(update={"data": data})


def test_the_state_is_the_parameters_and_two_moments() -> None:
    plan = resolve(job_of(64), world_of("v5p-64"), CORPUS)
    parameters = sum(array.bytes_per_device for array in plan.parameters)
    assert needed(job_of(64)).state == 3 * parameters
    assert needed(job_of(64)).gradients == parameters


def test_offloaded_moments_are_no_part_of_the_state() -> None:
    job = job_of(64, "full")
    optimizer = job.optimizer.model_copy(update={"offload_moments": True})
    far = job.model_copy(update={"optimizer": optimizer})
    plan = resolve(job, world_of("v5p-8"), CORPUS)
    assert needed(far, "v5p-8").state == sum(array.bytes_per_device for array in plan.parameters)
    assert needed(far, "v5p-8").working == needed(job, "v5p-8").working


def test_the_update_needs_room_for_the_moments_that_come_and_go() -> None:
    world = V4_32.model_copy(update={"simulated": False})
    narrow = {"layers": 1, "d_model": 64, "heads": 1, "head_dim": 8, "d_ff": 8}
    job = tiny_job(model=narrow, optimizer={"offload_moments": True})
    plan = resolve(job, world, CORPUS)
    arrays = sorted(plan.parameters, key=lambda array: math.prod(array.shape))
    *others, second, largest = (array.bytes_per_device for array in arrays)
    assert largest > second + sum(others)
    # By then, the gradients of all other parameters are no longer needed.
    expected = 2 * second + 2 * largest - second - sum(others)
    assert optimizer_state.moved_bytes(job.optimizer, plan) == expected
    near = job.optimizer.model_copy(update={"offload_moments": False})
    assert optimizer_state.moved_bytes(near, plan) == 0


def test_fully_rematerialized_layers_keep_their_inputs() -> None:
    tokens = 2 * 4096
    assert needed(job_of(64, "full")).kept == 32 * tokens * 4096 * 2


def test_what_is_done_again_is_not_kept() -> None:
    kept = [needed(job_of(64, remat)).kept for remat in ("none", "dots", "full")]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3


def test_micro_batches_share_activation_memory_and_add_gradient_sum() -> None:
    whole, parts = needed(job_of(64, "dots")), needed(in_micro_batches(job_of(64, "dots"), 2))
    assert parts.kept == whole.kept / 2
    assert parts.gradients == 2 * whole.gradients
    assert (parts.state, parts.batch) == (whole.state, whole.batch)


def test_tensor_parallelism_splits_scores_and_hidden_not_stream() -> None:
    one, two = needed(job_of(32, fsdp=32)), needed(job_of(16, fsdp=16, tensor=2))
    stream = 32 * 4096 * 4096 * (6 * 4 + 2 * 2)
    assert two.kept - stream == (one.kept - stream) / 2


def test_the_fastest_that_fits_is_first() -> None:
    ranking = ranked(job_of(64), "v5p-64")
    orders = [one.order for one in ranking.fitting]
    assert orders == sorted(orders)
    assert all(one.footprint.total <= ranking.hbm_bytes for one in ranking.fitting)


def test_what_may_fit_begins_with_the_smallest() -> None:
    ranking = ranked(job_of(64), "v5e-64")
    sizes = [one.footprint.total for one in ranking.doubtful]
    assert sizes == sorted(sizes)
    assert all(one.footprint.certain <= ranking.hbm_bytes < one.footprint.total
               for one in ranking.doubtful)  # fmt: skip


def test_the_job_as_it_is_has_its_place() -> None:
    ranking = ranked(job_of(64, "full"), "v5p-64")
    assert ranking.own.alternative.overrides == ()
    assert ranking.own in ranking.all_by_speed


def test_of_two_that_are_as_fast_the_one_with_fewer_changes_is_first() -> None:
    ranking = ranked(job_of(32, "full"), "v5p-8")
    changes = [(one.order[0], len(one.alternative.changes)) for one in ranking.all_by_speed]
    assert changes == sorted(changes)


def test_simulated_devices_have_no_ranking() -> None:
    job = tiny_job()
    assert rank(job, resolve(job, V4_32, CORPUS)) is None
