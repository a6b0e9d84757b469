"""A whole run on one process, from the plan to the sample."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
from jax.sharding import Mesh

from trainer.ahead.background import AheadOfTime
from trainer.callbacks import (
    AheadCallback,
    CollectionCallback,
    EvalCallback,
    InMemoryCallback,
    ProfileCallback,
    ReportCallback,
    SampleCallback,
)
from trainer.checkpoint.errors import StoppedError
from trainer.checkpoint.initial_state import InitialState, begin
from trainer.checkpoint.manager import Checkpoints, saving_of
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol import versions
from trainer.contract.protocol.events import (
    CompiledEvent,
    FinishedEvent,
    InitializedEvent,
    StartedEvent,
)
from trainer.contract.records import exclusions
from trainer.contract.records.compatibility import code_of
from trainer.contract.records.exclusions import Exclusion, Exclusions
from trainer.contract.storage.corpus import DataError
from trainer.data import pipeline
from trainer.data.eval_tasks import EvalTasks
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.distributed import initialize, mesh, program_exchange
from trainer.distributed.process_env import Environment
from trainer.distributed.stop_vote import StopSignal, StopVote
from trainer.evaluation.evaluate import Evaluator
from trainer.evaluation.generate import Sampler
from trainer.evaluation.tasks import TaskEvaluator
from trainer.integrity.errors import UndecidedError, WrongHostError
from trainer.integrity.host_check import HostCheck
from trainer.integrity.replay import Recorder, begin_replay
from trainer.loop import Callback, Loop, Step, Training
from trainer.preflight import Inputs, read_inputs
from trainer.programs import executables, hot_start
from trainer.programs.counts import Counts, counting
from trainer.run_plan import planned
from trainer.step import compiler_options
from trainer.step.spike_policy import SpikePolicy
from trainer.step.spikes import RewindError
from trainer.step.train_step import TrainProgram
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EVENT_TEXT_CHARACTERS, Report
from trainer.telemetry.profiler import Profiler


def train(
    job: Job, environment: Environment, run_dir: Path, events: Events, checked: Inputs | None
) -> None:
    """Trains; process 0 writes metrics.jsonl and sample.txt into `run_dir`.

    `checked` are the inputs that this process has read in its check of the host, if it did one.
    """
    stop = StopSignal()
    if job.checkpoint:
        stop.listen()
    initialize.configure()
    plan = planned(job, environment, run_dir)
    code = checked.code if checked else code_of(job)
    events.emit(StartedEvent(versions=versions.versions(), code=code))
    inputs = checked or read_inputs(job, events)
    tokens, tasks = inputs.tokens, inputs.tasks
    _check_corpus(plan, tokens)
    devices = _connect(job, plan, environment, events)
    report = Report(job, environment, run_dir, events)
    _warn_of_bad_records(tokens, tasks, report)
    every = list(devices.devices.flat)
    hot = hot_start.find(run_dir, job, plan, environment.process, every[0])
    if hot.rejection:
        _report_rejection(hot.rejection, environment.process, report)
    exchange = program_exchange.for_attempt(job.deadlines, on_cpu=plan.world.on_cpu)
    programs = executables.kept(job, plan, every, hot.programs, exchange=exchange)
    with closing(report), counting() as counts, programs:
        program = TrainProgram.of(job, plan, devices)
        run = _Run(environment, run_dir, events, report, plan, tokens, tasks, program, counts)
        loss, text = run.train(stop)
    _finish(job, environment, run_dir, events, loss, text)


@dataclass(frozen=True)
class _Run:
    """One process of a run, connected to the others; builds the parts of its loop."""

    environment: Environment
    run_dir: Path
    events: Events
    report: Report
    plan: Plan
    tokens: Tokens | Mixture
    tasks: EvalTasks | None
    program: TrainProgram
    counts: Counts

    def train(self, stop: StopSignal) -> tuple[float, str | None]:
        """Runs the loop. Returns the last loss, and the last sample if the job wants samples."""
        job, program, report, events = self.program.job, self.program, self.report, self.events
        with jax.set_mesh(program.mesh):
            saved = Checkpoints.open(
                job, self.plan, self.tokens, self.run_dir, self.environment, program.shapes, report
            )
            start, training, memory = self.prepare(saved, stop)
            sampler = Sampler(program, job.sample, self.tokens.tokenizer) if job.sample else None
            callbacks = list(self.callbacks(training.loader, sampler, memory))
            ahead = AheadOfTime(self.run_dir, self.plan, self.environment.process)
            try:
                with ahead, CollectionCallback() as collection:
                    callbacks = [collection, *callbacks, AheadCallback(ahead)]
                    state, loss = Loop(training, callbacks, events).run(start)
            except StoppedError:
                _disconnect("stopped")
                raise
            except RewindError as error:
                training.spikes.exclude(error.step)
                _disconnect("rewound")
                raise
            except (WrongHostError, UndecidedError):
                self._discard_unchecked(saved, training)
                _disconnect("wrong host")
                raise
            text = None
            if sampler:
                with events.phase("sample"):
                    text = sampler.sample(state.weights)
            report.finished(text)
        return loss, text

    def prepare(
        self, saved: Checkpoints | None, stop: StopSignal
    ) -> tuple[InitialState, Training, InMemoryCallback | None]:
        """Restores or initializes the state, and compiles the step.

        The last result saves the state in memory, if the job wants that.
        """
        job, plan, report, program = self.program.job, self.plan, self.report, self.program
        restorer = saved.restorer(report) if saved else None
        with initialize.all_keep_compiled(on_cpu=plan.world.on_cpu):
            if plan.replay:
                start = begin_replay(program, plan, self.tokens.corpus_sha256, report, self.events)
            else:
                start = begin(program, plan, restorer, report, self.events)
        shift = start.examples - start.step * job.data.global_batch
        shardings = batch_shardings(program.mesh)
        excluded = saved.excluded(start) if saved else start.excluded
        applied = self._applicable(excluded)
        loader = BatchLoader(job, plan.batch, self.tokens, shardings, shift, applied)
        saving = saving_of(saved, loader, start, stop, report)
        with initialize.all_keep_compiled(on_cpu=plan.world.on_cpu):
            hosts = self._host_check(start)
            step = _compiled(
                program, loader, self.events, report, self.counts, self._hang_deadline()
            )
        if plan.replay:
            process = self.environment.process
            step = Recorder(program, plan.replay, self.run_dir, process).recording(step)
        exclude = partial(self._exclude, saved, loader, excluded)
        spikes = SpikePolicy(program, start.recent, report, len(excluded), exclude)
        vote = StopVote(program.mesh)
        training = Training(job.last_step, step, loader, vote, saving, spikes, hosts)
        saver = saved.memory_saver(start, self.events) if saved else None
        memory = saver and InMemoryCallback(saver, job, start, loader, self.events)
        return start, training, memory

    def _hang_deadline(self) -> dict[str, str]:
        """Returns the options that end this process if a step hangs; a launcher needs none."""
        if self.environment.is_supervised:
            return {}
        return compiler_options.hang_deadline(self.program.mesh, self.program.job.deadlines)

    def _host_check(self, start: InitialState) -> HostCheck | None:
        """Returns what compares the hosts, if the job wants that and there are several."""
        if not self.program.job.integrity or self.plan.replay or self.environment.processes == 1:
            return None
        with self.events.phase("compile"):
            return HostCheck(self.program, self.plan, start, self.report)

    def _discard_unchecked(self, saved: Checkpoints | None, training: Training) -> None:
        """Moves the checkpoints aside that were saved since the hosts last computed the same."""
        assert saved and training.hosts, "the job file requires checkpoints for integrity"
        saved.discard_after(training.hosts.checked_step, self.report)

    def _applicable(self, excluded: Exclusions) -> Exclusions:
        """Returns the exclusions that belong to this order of examples; warns of others."""
        found = exclusions.applicable(excluded, self._order)
        if len(found) < len(excluded):
            self.report.warn(
                f"{len(excluded) - len(found)} exclusions after spikes belong to other data, and "
                "no longer apply"
            )
        return found

    def _exclude(
        self, saved: Checkpoints | None, loader: BatchLoader, excluded: Exclusions, step: int
    ) -> None:
        """Records that the run excludes the examples of a step, beside those excluded before."""
        assert saved, "the job file requires checkpoints for on_spike: rewind"
        first, last = loader.examples(step - 1), loader.examples(step)
        attempt = self.environment.attempt
        new = Exclusion(
            step=step, attempt=attempt, first=first, count=last - first, order=self._order
        )
        saved.exclude((*excluded, new))

    @property
    def _order(self) -> str:
        job = self.program.job
        return pipeline.order_hash(self.tokens, job.data, job.seed)

    def callbacks(
        self, loader: BatchLoader, sampler: Sampler | None, memory: InMemoryCallback | None
    ) -> Iterator[Callback]:
        """Yields what watches the loop, in the order in which it is called after a step."""
        job, program, report, events = self.program.job, self.program, self.report, self.events
        yield ReportCallback(job, self.plan, loader, report)
        yield ProfileCallback(Profiler(job, self.environment, self.run_dir), events)
        if job.eval:
            tasks = TaskEvaluator(program, self.tasks) if self.tasks else None
            yield EvalCallback(job.eval, job.last_step, loader, Evaluator(program), tasks, events)
        if job.sample and sampler:
            yield SampleCallback(job.sample, job.last_step, sampler, report, events)
        if memory:
            yield memory


def _check_corpus(plan: Plan, tokens: Tokens | Mixture) -> None:
    if plan.corpus.sha256 not in (None, tokens.corpus_sha256):
        raise DataError(
            f"the corpus here has the hash {tokens.corpus_sha256}, the planned one "
            f"{plan.corpus.sha256}: the data has changed, or this host has other data"
        )


def _connect(job: Job, plan: Plan, environment: Environment, events: Events) -> Mesh:
    """Connects to the other processes and returns the mesh over all devices."""
    initialize.start(environment, job.deadlines, on_cpu=plan.world.on_cpu)
    initialize.check_world(plan.world, environment.process)
    devices = mesh.build(plan)
    processes, count = jax.process_count(), jax.device_count()
    events.emit(InitializedEvent(processes=processes, hosts=plan.world.hosts, devices=count))
    return devices


def _warn_of_bad_records(tokens: Tokens | Mixture, tasks: EvalTasks | None, report: Report) -> None:
    for bad in (tokens.bad, *([tasks.bad] if tasks else [])):
        if bad.found:
            report.warn(f"left out: {bad}")


def _report_rejection(reason: str, process: int, report: Report) -> None:
    """Says in the log of this host, and for host 0 to the launcher, why it compiles."""
    message = f"hot start: {reason}. This host compiles its programs itself"
    report.warn(message)
    if process:
        print(f"warning: {message}", flush=True)


def _compiled(
    program: TrainProgram,
    loader: BatchLoader,
    events: Events,
    report: Report,
    counts: Counts,
    options: Mapping[str, str],
) -> Step:
    """Returns the compiled step when every process is ready for the first one.

    `counts` are those of the process, `options` further ones of the compiler.
    """
    with events.phase("compile"):
        begin, before = time.perf_counter(), replace(counts)
        step = program.compiled_step(next(loader.training(first_step=1)), options)
        seconds = time.perf_counter() - begin
        read = counts.cache_hits - before.cache_hits
        from_cache = counts.compilations - before.compilations == read
        events.emit(
            CompiledEvent(
                seconds=seconds,
                from_cache=from_cache,
                traces=counts.traces,
                compilations=counts.compilations,
            )
        )
        report.print_line(f"compiled in {seconds:.1f} s{', from the cache' * from_cache}")
        if jax.process_index():  # events.jsonl keeps only those of process 0
            print(f"{counts.traces} traces, {counts.compilations} compilations", flush=True)
        if loaded := executables.loaded():
            print(f"hot start: loaded {loaded} programs that came with the run", flush=True)
        initialize.wait_for_compilers("first step", program.job.deadlines)
    return partial(step, program.schedule)


def _finish(
    job: Job, environment: Environment, run_dir: Path, events: Events, loss: float, text: str | None
) -> None:  # fmt: skip
    if text is not None and environment.process == 0:
        (run_dir / "sample.txt").write_text(text, encoding="utf-8")
    _disconnect("end")
    shown = text and text[:EVENT_TEXT_CHARACTERS]
    events.emit(FinishedEvent(step=job.last_step, loss=loss, sample=shown), last_word=True)


def _disconnect(name: str) -> None:
    """Waits for all processes, then disconnects: without process 0's coordinator, others abort."""
    initialize.barrier(name)
    initialize.shutdown()
