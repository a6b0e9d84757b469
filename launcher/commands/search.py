"""`launch plan --search` ranks meshes, rematerialization and micro-batches; `launch plan --compile`
suggests an alternative of a job that would be better.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from launcher.commands.plan_result import StepBounds
from launcher.core.errors import InterruptError, JobError, UsageError
from launcher.core.formatting import format_bytes
from launcher.core.json_output import print_json
from launcher.core.signals import ending_on_signals
from launcher.planning.compiler import MOST, CompiledCandidate, compile_candidates
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcessError
from launcher.ui.plan_view import describe_world
from trainer.contract.config.model import CustomModel
from trainer.contract.estimates.forecast import Basis
from trainer.contract.estimates.search import Candidate, Ranking, rank
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.protocol.reports import CompileReport

CLEARLY_FASTER = 0.9
"""Maximum step time of a clearly faster alternative, as a share of the job's own."""
SAFE_SHARE = 0.9
"""Maximum share of the memory that an estimate may reach."""


@dataclass(frozen=True)
class Advice:
    """A suggested alternative, or the message that none fits."""

    text: str
    overrides: tuple[str, ...] = ()
    hbm_estimate_bytes: int | None = None
    step_s: float | None = None
    """Step time in seconds, by the calibrated estimate."""


def advise(launch: TrainingLaunch, verdict: CompileReport) -> Advice | None:
    """Suggests an alternative by arithmetic, from the verdict on the job as it is.

    Returns None when there is nothing to suggest.
    """
    ranking = rank(launch.job, launch.plan)
    if ranking is None:
        return None
    scale = _scale(ranking, verdict)
    limit = SAFE_SHARE * ranking.hbm_bytes / scale
    fitting = [one for one in ranking.all_by_speed if one.footprint.total <= limit]
    if verdict.fits:
        return _faster(ranking, fitting, scale)
    smaller = [one for one in fitting if one.footprint.total < ranking.own.footprint.total]
    if smaller:
        return _advice("would fit, by estimate", smaller[0], ranking, scale)
    return Advice(nothing_fits(ranking, scale))


def nothing_fits(ranking: Ranking, scale: float = 1.0) -> str:
    """Describes the least memory that any alternative needs; `scale` multiplies the estimates."""
    least = scale * ranking.least.footprint.total
    word = "fits" if least > ranking.hbm_bytes else "surely fits"
    return (
        f"nothing legal on this cluster {word}: the least needs about {format_bytes(least)} of "
        f"{format_bytes(ranking.hbm_bytes)} per device; take more devices or a smaller model"
    )


def _faster(ranking: Ranking, fitting: list[Candidate], scale: float) -> Advice | None:
    limit_s = CLEARLY_FASTER * ranking.own.forecast.step_s
    faster = [one for one in fitting if one.forecast.step_s <= limit_s]
    return _advice("faster, by estimate", faster[0], ranking, scale) if faster else None


def _advice(what: str, one: Candidate, ranking: Ranking, scale: float) -> Advice:
    needed = round(scale * one.footprint.total)
    overrides = one.alternative.overrides
    text = (
        f"{what}: {' '.join(overrides)} (about {format_bytes(needed)} of "
        f"{format_bytes(ranking.hbm_bytes)} per device; {one.forecast.step_s:.3g} s a step, now "
        f"{ranking.own.forecast.step_s:.3g} s)"
    )
    return Advice(text, overrides, needed, one.forecast.step_s)


def _scale(ranking: Ranking, verdict: CompileReport) -> float:
    """Returns the memory that the compiler needs for the job as it is, relative to the estimate."""
    needed = verdict.hbm_needed_bytes
    return needed / ranking.own.footprint.total if needed else 1.0


ROWS = 10


def search(launch: LaunchSpec, *, compiled: bool | None, as_json: bool) -> None:
    """Ranks the alternatives of the job on its cluster, and prints them.

    `compiled`: whether the compiler checks the best ones; None: if there is a compiler.

    Raises JobError when nothing is likely to fit, UsageError for a job that cannot be ranked.
    """
    if not isinstance(launch, TrainingLaunch):
        raise UsageError("--search: what a command runs is not known")
    if isinstance(launch.job.model, CustomModel):
        raise UsageError(
            "--search supports only the built-in decoder. For a custom model, use --compile"
        )
    ranking = rank(launch.job, launch.plan)
    if ranking is None:
        raise UsageError("--search needs a real accelerator: name one, and leave out --simulate")
    lack = lacks_compiler(launch.plan.world) if compiled is not False else "--no-compile"
    try:
        asked = [] if lack and not compiled else _compile(launch, ranking)
    except TrainerProcessError as error:
        raise UsageError(f"--compile: {error}") from None
    except KeyboardInterrupt:
        raise InterruptError("interrupted; the compiler has ended") from None
    findings = in_order(ranking, asked)
    if as_json:
        print_json(_result(launch, ranking, findings, lack))
    else:
        _print(Console(), launch, ranking, findings, lack)
    if not any(_is_likely(one, ranking) for one in findings):
        raise JobError(nothing_fits(ranking))


def _compile(launch: TrainingLaunch, ranking: Ranking) -> list[CompiledCandidate]:
    with ending_on_signals(), _progress(Console(stderr=True)) as progress:
        task = progress.add_task("compiling the likely best", total=MOST)
        return compile_candidates(launch, ranking, lambda: progress.advance(task))


def _progress(errors: Console) -> Progress:
    """Returns a progress bar that is shown only on a terminal and removed when done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} at most"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def in_order(ranking: Ranking, asked: list[CompiledCandidate]) -> list[CompiledCandidate]:
    """Returns the alternatives that fit by the compiler, then the unknown, then the rest.

    Those that fit are in the order of their compiled schedules, the others in that of the ranking.
    """
    compiled = {id(one.candidate): one for one in asked}
    every = [
        compiled.get(id(one), CompiledCandidate(one))
        for one in [*ranking.fitting, *ranking.doubtful]
    ]
    return sorted(every, key=_place)


def _place(finding: CompiledCandidate) -> tuple[float, ...]:
    group = {True: 0, None: 1, False: 2}[finding.fits]
    return group, finding.forecast.step_s if finding.fits else 0.0


def _is_likely(finding: CompiledCandidate, ranking: Ranking) -> bool:
    """Returns whether an alternative fits, by the compiler or else by estimate."""
    if finding.fits is not None:
        return finding.fits
    return finding.candidate.footprint.total <= ranking.hbm_bytes


def _print(
    console: Console,
    launch: TrainingLaunch,
    ranking: Ranking,
    findings: list[CompiledCandidate],
    lack: str,
) -> None:
    console.print(f"[bold]{launch.job.name}[/bold] on {describe_world(launch)}", highlight=False)
    console.print(
        f"{len(ranking.all_by_speed)} alternatives are legal: {len(ranking.fitting)} fit by "
        f"estimate, {len(ranking.doubtful)} may fit",
        highlight=False,
    )
    if findings:
        console.print(_table(ranking, findings))
    for line in _last_lines(ranking, findings, lack):
        console.print(Text(line), soft_wrap=True)


def _table(ranking: Ranking, findings: list[CompiledCandidate]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("", "forecast", "at best"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column(f"of {format_bytes(ranking.hbm_bytes)} HBM", no_wrap=True)
    table.add_column("changes", overflow="fold")
    for number, finding in enumerate(findings, 1):
        likely, best = finding.forecast, finding.candidate.bounds
        if number <= ROWS or finding.candidate is ranking.own:
            times = f"{likely.step_s:.3g} s", f"{best.step_s:.3g} s"
            table.add_row(str(number), *times, _memory(finding, ranking), _changes(finding))
    return table


def _changes(finding: CompiledCandidate) -> str:
    return " ".join(finding.candidate.alternative.overrides) or "none"


def _last_lines(ranking: Ranking, findings: list[CompiledCandidate], lack: str) -> Iterator[str]:
    own = ranking.own.footprint
    if own.certain > ranking.hbm_bytes:
        yield f"the job as it is needs more than {format_bytes(own.certain)} per device"
    if lack:
        yield f"by arithmetic alone: {lack}"
    yield from (f"the compiler gave no verdict: {one.failure}" for one in findings if one.failure)
    if findings and _is_likely(findings[0], ranking):
        yield f"the best: {_changes(findings[0])}"


def _memory(finding: CompiledCandidate, ranking: Ranking) -> str:
    estimate = finding.candidate.footprint.total
    if finding.verdict is None:
        word = "estimated" if estimate <= ranking.hbm_bytes else "may fit"
        return f"~{format_bytes(estimate)} {'compiler failed' if finding.failure else word}"
    needed = finding.verdict.hbm_needed_bytes
    size = format_bytes(needed) if needed else f"~{format_bytes(estimate)}"
    return f"{size} {'fits' if finding.fits else 'does not fit'}"


@dataclass(frozen=True, kw_only=True)
class RankedAlternative:
    """An alternative of the job that computes the same numbers."""

    overrides: Sequence[str]
    """Changes to the job, as on the command line; empty for the job as it is."""
    mesh: Mapping[str, int]
    """Size of each axis."""
    remat: str
    """Rematerialization policy."""
    grad_accum_steps: int
    rows_per_device: int
    """Rows of one micro-batch."""
    bounds: StepBounds
    step_time_s: float
    """Forecast of a step in seconds, by which the alternatives are ranked."""
    forecast_basis: Basis
    hbm_estimate_bytes: int
    estimate: Mapping[str, int]
    """Estimated bytes per device by part."""
    fits: bool | None
    """Whether it fits by the compiler; None without a result."""
    hbm_needed_bytes: int | None
    """Bytes per device by the compiler; None without a result."""
    compile_s: float | None
    """Seconds that compilation took; None without a result."""
    failure: str
    """Why the compiler failed; "" when it did not."""

    @classmethod
    def of(cls, finding: CompiledCandidate) -> "RankedAlternative":
        """Returns a candidate for a command's JSON output."""
        one, verdict = finding.candidate, finding.verdict
        plan = one.alternative.plan
        return cls(
            overrides=one.alternative.overrides,
            mesh=plan.mesh,
            remat=one.alternative.job.decoder.remat,
            grad_accum_steps=plan.batch.grad_accum_steps,
            rows_per_device=plan.batch.rows_per_device,
            bounds=StepBounds.of(one.bounds),
            step_time_s=finding.forecast.step_s,
            forecast_basis=finding.forecast.basis,
            hbm_estimate_bytes=one.footprint.total,
            estimate=one.footprint.parts,
            fits=finding.fits,
            hbm_needed_bytes=verdict and verdict.hbm_needed_bytes,
            compile_s=verdict and verdict.compile_s,
            failure=finding.failure,
        )


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The alternatives of a job on its cluster, which `--search` ranks."""

    job: str
    cluster: str
    hbm_available_bytes: int
    """HBM of a device."""
    legal: int
    """Number of legal alternatives, whether they fit or not."""
    lacks_compiler: str
    """Why the compiler was not asked; "" when it was."""
    alternatives: Sequence[RankedAlternative]
    """Those that fit by the compiler, then those without a result, then the rest."""


def _result(
    launch: TrainingLaunch, ranking: Ranking, findings: list[CompiledCandidate], lack: str
) -> SearchResult:
    return SearchResult(
        job=launch.job.name,
        cluster=launch.cluster_name,
        hbm_available_bytes=ranking.hbm_bytes,
        legal=len(ranking.all_by_speed),
        lacks_compiler=lack,
        alternatives=[RankedAlternative.of(one) for one in findings],
    )
