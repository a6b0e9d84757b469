"""The TPU compiler's report on a job's training step, without a TPU.

    python -m trainer.analysis.compile_report JOB_FILE PLAN_FILE

Compiles the exact step that would run, for the plan's devices as libtpu describes them, and prints
a CompileReport as a line of JSON on standard output. Before that, it prints a preliminary one, as
soon as the memory of the step is known. Exits with 1 when this machine has no compiler for the
devices.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import jax

from trainer.analysis import buffers, collectives, products, topology
from trainer.analysis.forecast import schedule
from trainer.analysis.forecast.costs import Costs
from trainer.analysis.hlo import Program
from trainer.analysis.parallelism import shares
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.config.model import Model
from trainer.contract.planning import accelerators, optimizer_state, sharding_rules
from trainer.contract.planning.chips import GiB
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol.reports import CompileReport, StepSchedule
from trainer.data.loader import abstract_batch
from trainer.data.packing import Batch
from trainer.distributed import mesh as meshes
from trainer.distributed.quick_exit import quick_exit
from trainer.evaluation.evaluate import Evaluator
from trainer.step.train_step import TrainProgram

Result = TypeVar("Result")
TOO_LARGE = re.compile(r"\(([\d.]+)([GT])\) exceeds available HBM \(([\d.]+)G\)")
"""Sizes in the compiler's error for a program that does not fit. It calls the first one "HLO
temporaries", but includes the arguments: 17.00G for x + 1, where x has 17 GiB and is donated."""


def main() -> int:
    """Reads the two files and prints the report."""
    job = load(Path(sys.argv[1]), Job).value
    plan = Plan.model_validate_json(Path(sys.argv[2]).read_text(encoding="utf-8"))
    try:
        _print(estimate(job, plan, _print))
    except topology.NoCompilerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _print(report: CompileReport) -> None:
    print(json.dumps(asdict(report)), flush=True)


def estimate(
    job: Job, plan: Plan, on_preliminary: Callable[[CompileReport], None] = lambda _: None
) -> CompileReport:
    """Compiles the training step of a plan for a real TPU, and an evaluation if the job has one.

    Calls `on_preliminary` in a thread once the compiler has assigned the buffers of a step that
    fits. The memory of its code is not known then, and that of buffers is a bound.

    Raises topology.NoCompilerError when this machine has no compiler for the devices, and
    JaxRuntimeError when the compiler fails for another reason than memory.
    """
    mesh = meshes.build(plan, topology.devices(plan.world))
    program = TrainProgram.of(job, plan, mesh)
    batch = abstract_batch(job, plan)
    memory = _state_bytes(job, plan) | {"batch": _batch_bytes(batch, plan)}
    available = accelerators.parse(plan.world.accelerator).hbm_bytes
    assert available is not None
    began = time.perf_counter()

    def on_assigned(size: int) -> None:
        bound = memory | {"temporaries": max(0, size - sum(memory.values()))}
        seconds = time.perf_counter() - began
        on_preliminary(CompileReport(True, size, available, bound, seconds, ""))

    try:
        with buffers.watching(on_assigned) as options:
            compiled = program.compiled_step(batch, options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        message = str(error).splitlines()[0]
        return _too_large(message, memory, available, time.perf_counter() - began)
    compile_s = time.perf_counter() - began
    found = compiled.memory_analysis()
    assert found is not None
    code_bytes = found.generated_code_size_in_bytes
    # Peak usage: the sum of all temporaries would be more, because their lifetimes differ. With
    # temporaries in the memory of the host, the peak is that of the larger memory.
    moments = found.host_argument_size_in_bytes
    peak = found.peak_memory_in_bytes - found.argument_size_in_bytes - moments
    temporaries = min(peak, found.temp_size_in_bytes)
    memory |= {"temporaries": temporaries, "program": code_bytes}
    needed = found.argument_size_in_bytes + temporaries + code_bytes
    text = compiled.as_text() or ""
    sent, followed = (
        _understood(collectives.of, text, plan),
        _understood(step_schedule, text, plan),
    )
    counted = _understood(products.of, text, plan)
    is_known = isinstance(job.model, Model)
    strategies = None if sent is None or not is_known else shares(sent, job, plan)
    verdict = CompileReport(
        True, needed, available, memory, compile_s, "", sent, strategies,
        schedule=followed, products=counted,
        host_bytes=found.host_temp_size_in_bytes + moments,
    )  # fmt: skip
    return _with_evaluation(verdict, program, batch) if job.eval else verdict


def _too_large(
    message: str, memory: dict[str, int], available: int, compile_s: float
) -> CompileReport:
    """Returns the report of a step that does not fit.

    The available memory is less than the chip's: libtpu reserves some.
    """
    needed = None
    if stated := TOO_LARGE.search(message):
        needed = int(float(stated[1]) * GiB) * {"G": 1, "T": 1024}[stated[2]]
        available = int(float(stated[3]) * GiB)
        memory |= {"temporaries": max(0, needed - sum(memory.values()))}
    return CompileReport(False, needed, available, memory, compile_s, message)


def _with_evaluation(verdict: CompileReport, program: TrainProgram, batch: Batch) -> CompileReport:
    """Adds an evaluation to the report.

    It runs in the same micro-batches, while the training state stays in memory.
    """
    began = time.perf_counter()
    params = program.shapes.weights
    with jax.set_mesh(program.mesh):
        compiled = Evaluator(program).compiled(params, batch)
    found = compiled.memory_analysis()
    assert found is not None
    own = found.peak_memory_in_bytes + found.generated_code_size_in_bytes
    needed = own + verdict.memory["optimizer"] + verdict.memory.get("teacher", 0)
    assert verdict.hbm_needed_bytes is not None
    fits = needed <= verdict.hbm_available_bytes
    return replace(
        verdict,
        fits=fits,
        hbm_needed_bytes=max(needed, verdict.hbm_needed_bytes),
        evaluation_bytes=needed,
        compile_s=verdict.compile_s + time.perf_counter() - began,
        message="" if fits else "the training step fits, but an evaluation beside it does not",
    )


def step_schedule(text: str, plan: Plan) -> StepSchedule:
    """Returns the time of a compiled step. Raises ValueError when its text is not understood."""
    program = Program(text)
    return schedule.follow(program, Costs(program, plan))


def _understood(read: Callable[[str, Plan], Result], text: str, plan: Plan) -> Result | None:
    """Returns what is read from a program's text.

    When the program is not understood, prints the reason and returns None: the report does not need
    it.
    """
    try:
        return read(text, plan)
    except (KeyError, ValueError) as error:
        print(f"cannot analyze the program ({read.__name__}): {error}", file=sys.stderr)
        return None


def _state_bytes(job: Job, plan: Plan) -> dict[str, int]:
    parameters = sum(array.bytes_per_device for array in plan.parameters)
    teacher = {"teacher": plan.teacher_bytes} if plan.teacher else {}
    return {
        "parameters": parameters,
        "optimizer": optimizer_state.bytes_per_device(job.optimizer, plan)
        - optimizer_state.offloaded_bytes(job.optimizer, plan),
        **teacher,
    }


def _batch_bytes(batch: Batch, plan: Plan) -> int:
    *of_tokens, examples = (array.size * array.dtype.itemsize for array in batch)
    by_row = examples // sharding_rules.row_shards(plan.mesh)
    return sum(of_tokens) // sharding_rules.token_shards(plan.mesh) + by_row


if __name__ == "__main__":
    quick_exit(main())
