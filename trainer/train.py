"""A whole run on one process, from the plan to the sample."""

import time
from contextlib import closing
from pathlib import Path

import jax

from trainer.checkpoint.errors import StoppedError
from trainer.checkpoint.initial_state import begin
from trainer.checkpoint.manager import Checkpoints, saving_of
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol import versions
from trainer.contract.storage.corpus import DataError
from trainer.data import questions
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.distributed import initialize, mesh
from trainer.distributed.process_env import Environment
from trainer.distributed.stop_vote import StopSignal, StopVote
from trainer.evaluation.evaluate import Evaluator
from trainer.evaluation.generate import Sampler
from trainer.evaluation.multiple_choice import MultipleChoiceEvaluator
from trainer.loop import Loop, Step
from trainer.preflight import code_of, prepare_data
from trainer.run_plan import planned
from trainer.step.train_step import TrainProgram
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EVENT_TEXT_CHARACTERS, Rates, Report
from trainer.telemetry.profiler import Profiling


def train(job: Job, environment: Environment, run_dir: Path, events: Events) -> None:
    """Trains; process 0 writes metrics.jsonl and sample.txt into `run_dir`."""
    stop = StopSignal()
    if job.checkpoint:
        stop.listen()
    initialize.configure()
    plan = planned(job, environment, run_dir)
    events.emit("started", versions=versions.versions(), code=code_of(job))
    tokens = prepare_data(job, events)
    asked = questions.load(job, tokens.tokenizer)
    _check_corpus(plan, tokens)
    initialize.start(environment, job.deadlines, on_cpu=plan.world.on_cpu)
    initialize.check_world(plan.world, environment.process)
    devices = mesh.build(plan)
    events.emit("initialized", processes=jax.process_count(), devices=jax.device_count())
    report = Report(job, environment, run_dir, events)
    for bad in (tokens.bad, *([asked.bad] if asked else [])):
        if bad.found:
            report.warn(f"left out: {bad}")
    trainable = TrainProgram.of(job, plan, devices)
    with closing(report), jax.set_mesh(devices):
        saved = Checkpoints.open(
            job, plan, tokens, run_dir, environment.attempt, trainable.shapes(), report
        )
        restorer = saved.restorer(report) if saved else None
        with initialize.all_keep_compiled(on_cpu=plan.world.on_cpu):
            start = begin(trainable, plan, restorer, report, events)
        shift = start.examples - start.step * job.data.global_batch
        feed = BatchLoader(job, plan.batch, tokens, batch_shardings(devices), shift)
        saving = saving_of(saved, feed, start.base, stop, report)
        with initialize.all_keep_compiled(on_cpu=plan.world.on_cpu):
            step = _compiled(trainable, feed, events, report)
        chooser = MultipleChoiceEvaluator(trainable, asked) if asked else None
        sampler = Sampler(trainable, job.sample, tokens.tokenizer) if job.sample else None
        loop = Loop(
            job, feed, step, StopVote(devices), Evaluator(trainable), chooser, sampler,
            saving, Rates(job, plan), Profiling(job, environment, run_dir), report, events,
        )  # fmt: skip
        try:
            state, loss = loop.run(start)
        except StoppedError:
            _leave_together("stopped")
            raise
        text = None
        if sampler:
            with events.phase("sample"):
                text = sampler.sample(state.weights)
        report.finished(text)
    _finish(job, environment, run_dir, events, loss, text)


def _check_corpus(plan: Plan, tokens: Tokens | Mixture) -> None:
    if plan.corpus.sha256 not in (None, tokens.corpus_sha256):
        raise DataError(
            f"the corpus here has the hash {tokens.corpus_sha256}, the planned one "
            f"{plan.corpus.sha256}: the data has changed, or this host has other data"
        )


def _compiled(trainable: TrainProgram, feed: BatchLoader, events: Events, report: Report) -> Step:
    """Returns the compiled step when every process is ready for the first one."""
    with events.phase("compile"):
        begin = time.perf_counter()
        step = trainable.compiled_step(next(feed.training(first_step=1)))
        report.say(f"compiled in {time.perf_counter() - begin:.1f} s")
        initialize.wait_for_compilers("first step", trainable.job.deadlines)
    return step


def _finish(
    job: Job, environment: Environment, run_dir: Path, events: Events, loss: float, text: str | None
) -> None:  # fmt: skip
    if text is not None and environment.process == 0:
        (run_dir / "sample.txt").write_text(text, encoding="utf-8")
    _leave_together("end")
    shown = text and text[:EVENT_TEXT_CHARACTERS]
    events.emit("finished", last_word=True, step=job.steps, loss=loss, sample=shown)


def _leave_together(name: str) -> None:
    """Waits for all processes, then disconnects: without process 0's coordinator, others abort."""
    initialize.barrier(name)
    initialize.shutdown()
