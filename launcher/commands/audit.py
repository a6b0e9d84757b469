"""`launch audit`: replays steps of a run and says whether they come out the same."""

import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from launcher.audit import result as results
from launcher.audit.audit import audit
from launcher.audit.programs import codes_of, made_with, shown_codes, version_changes, versions_of
from launcher.audit.recorded import Recorded, read_recorded
from launcher.audit.result import AuditResult
from launcher.cluster.schema import Cluster, ClusterRef, find_cluster
from launcher.commands.audit_elsewhere import problem
from launcher.commands.audit_replays import Replays, is_same_computation
from launcher.comparison.differences import ROUNDING_ONLY, is_under
from launcher.core.errors import JobError, UsageError
from launcher.core.formatting import describe_hosts, pluralize
from launcher.executors.resume_point import new_cluster_ref
from launcher.runs.folder import launched_in
from launcher.runs.run_record import RunRecord, read_record
from trainer.contract.config.loader import Loaded
from trainer.contract.protocol import versions
from trainer.contract.records.compatibility import SHOWN_OF_HASH, code_of

RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class AuditOptions:
    """The options of `launch audit`."""

    steps: str | None
    """The steps, as FIRST-LAST; None for those between the checkpoints."""
    where: tuple[str | None, bool, int | None]
    """The cluster, whether it is simulated, and the number of simulated hosts."""
    overrides: Sequence[str]
    other_code: bool
    """Whether another code version than that of the run may compute the replays."""
    as_json: bool

    def report(self, text: str) -> None:
        """Prints the progress. Standard output is for JSON alone, if the user wants that."""
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)


def audit_run(folder: Path, options: AuditOptions) -> AuditResult:
    """Audits a run, and records the verdict in its folder.

    Raises UsageError before anything starts when the run or the options do not permit the replay,
    and JobError when a replay fails.
    """
    record = read_record(folder)
    cluster_ref = new_cluster_ref(record.status.recorded.cluster or ClusterRef(), *options.where)
    steps = _parse_steps(options.steps)
    with chdir(launched_in(folder)):
        cluster = find_cluster(cluster_ref.name)
        _check(cluster.value, cluster_ref, options)
        found = _audit(record, steps, cluster, cluster_ref, options)
    results.write(found, folder)
    return found


def _audit(
    record: RunRecord,
    steps: tuple[int, int] | None,
    cluster: Loaded[Cluster],
    cluster_ref: ClusterRef,
    options: AuditOptions,
) -> AuditResult:
    began, recorded = time.time(), read_recorded(record, steps)
    with _temporary_folder() as temporary:
        replays = Replays(
            recorded, cluster, cluster_ref, options.overrides, temporary, options.report
        )
        _check_data_and_code(record, recorded, replays, other_code=options.other_code)
        before, now = versions_of(recorded.programs), versions.versions()
        changes = (*version_changes(before, now), *_other_changes(recorded, replays))
        verdict = audit(recorded, replays, is_same_program=not changes)
    return AuditResult(
        run=record.name,
        time=began,
        first_step=recorded.first,
        last_step=recorded.last,
        start_step=recorded.start_step,
        checkpoints=tuple(sorted(recorded.checkpoints)),
        cluster=cluster_ref.name,
        mesh=replays.plan.mesh,
        changes=changes,
        run_versions=before,
        replay_versions=now,
        hosts=replays.hosts,
        moved=replays.can_move,
        replays=replays.count,
        **verdict.fields(made_with(before, now)),
    )


def show(found: AuditResult) -> None:
    """Prints the verdict as text."""
    for change in found.changes:
        print(f"changed since the run: {change}")
    print(f"{found.run}: {found.text}")
    print(
        f"{pluralize(found.replays, 'replay')}; recorded in its report: launch report {found.run}"
    )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Yields a folder that is deleted afterwards, unless a replay fails: its logs are there."""
    folder = Path(mkdtemp(prefix="slipway-audit-"))
    is_kept = False
    try:
        yield folder
    except JobError:
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _parse_steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise UsageError(f"--steps: expected FIRST-LAST, such as 400-420, found {text!r}")
    return first, last


def _check(cluster: Cluster, cluster_ref: ClusterRef, options: AuditOptions) -> None:
    """Raises UsageError for a cluster or overrides that an audit cannot use."""
    problems = [
        f"{override}: an audit changes only keys that change the loss by rounding, such as mesh, "
        "data.grad_accum_steps and model.remat"
        for override in options.overrides
        if not is_under(override.partition("=")[0], ROUNDING_ONLY)
    ]
    if elsewhere := problem(cluster, cluster_ref):
        problems.append(elsewhere)
    if problems:
        raise UsageError("\n".join(problems))


def _check_data_and_code(
    record: RunRecord, recorded: Recorded, replays: Replays, *, other_code: bool
) -> None:
    """Raises UsageError when the data or the code of the run is missing here."""
    problems: list[str] = []
    known, here = recorded.corpus_sha256, replays.plan.corpus.sha256
    if known and here and known != here:
        problems.append(
            f"the data of {record.name} is missing: it was trained on a corpus with the hash "
            f"{known[:SHOWN_OF_HASH]}, and data.{recorded.job.data.source} here has "
            f"{here[:SHOWN_OF_HASH]}. Restore its files"
        )
    code, codes = code_of(recorded.job), codes_of(recorded.programs)
    if not other_code and codes - {code}:
        problems.append(
            f"the code of {record.name} is missing: its hash is {shown_codes(codes)}, and that of "
            f"the code here is {shown_codes({code})}. Check out the version that ran it, or "
            "compare up to rounding with --other-code"
        )
    if problems:
        raise UsageError("\n".join(problems))


def _other_changes(recorded: Recorded, replays: Replays) -> Iterator[str]:
    """Yields what else makes the program of the replays another one than that of the run."""
    code, codes = code_of(recorded.job), codes_of(recorded.programs)
    if codes != {code}:
        yield f"code: {shown_codes(codes)} -> {shown_codes({code})}"
    if not is_same_computation(recorded, replays):
        yield f"mesh or split of the batch: now {_described(replays)}"


def _described(replays: Replays) -> str:
    plan = replays.plan
    axes = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items() if size > 1)
    micro = pluralize(plan.batch.grad_accum_steps, "micro-batch").replace("chs", "ches")
    return f"{describe_hosts(plan.world)} ({axes or 'one device'}), {micro}"
