"""What each command prints with `-o json`: the types behind `launch schema COMMAND`.

A new command adds its type here. It prints an instance of the type with `print_json` of
`launcher/core/json_output.py`, or one per line with `print_json_line` and `lines=True`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from launcher.audit.result import AuditResult
from launcher.chains.lineage import Lineage
from launcher.commands.check_sharding import CheckedPlanResult
from launcher.commands.checkpoints import CheckpointResult, ExportResult, RestoredCheckpoint
from launcher.commands.clusters import DownResult, UpResult
from launcher.commands.compile import CompiledPlanResult
from launcher.commands.debug import DebugResult
from launcher.commands.doctor import DoctorResult
from launcher.commands.execute import ExecEnded, ExecOutput
from launcher.commands.init import InitResult
from launcher.commands.keep import KeptPlanResult
from launcher.commands.logs import LogLine
from launcher.commands.plan import ArrayParts
from launcher.commands.plan_result import PlanResult
from launcher.commands.profile import ProfileResult
from launcher.commands.rehearse import RehearsalResult
from launcher.commands.report import ReportResult
from launcher.commands.sample import SampleResult
from launcher.commands.search import SearchResult
from launcher.commands.stacks import StacksResult
from launcher.commands.status import StatusResult
from launcher.commands.why import WhyResult
from launcher.comparison.comparison import Comparison
from launcher.core.events import EVENT_TYPES
from launcher.runs.status import RunResult
from launcher.ui.flow_view import FlowResult
from launcher.ui.sweep_view import SweepResult
from trainer.contract.protocol.events import UnknownEvent
from trainer.contract.protocol.reports import StepExamples

AnyPlan = (
    PlanResult
    | CompiledPlanResult
    | KeptPlanResult
    | CheckedPlanResult
    | SearchResult
    | list[ArrayParts]
)
AnyEvent = Union[(*EVENT_TYPES, UnknownEvent)]


@dataclass(frozen=True)
class CommandOutput:
    """The JSON output of a command."""

    type: Any
    """Type of the JSON value: a dataclass, a model, or a list or a union of these."""
    lines: bool = False
    """Whether each line is such a value, printed as soon as it is known."""


COMMAND_OUTPUTS: Mapping[str, CommandOutput] = {
    "attach": CommandOutput(StatusResult),
    "audit": CommandOutput(AuditResult),
    "checkpoints export": CommandOutput(ExportResult),
    "checkpoints list": CommandOutput(list[CheckpointResult]),
    "checkpoints restore-damaged": CommandOutput(list[RestoredCheckpoint]),
    "compare": CommandOutput(Comparison),
    "debug": CommandOutput(DebugResult),
    "doctor": CommandOutput(DoctorResult),
    "down": CommandOutput(DownResult),
    "events": CommandOutput(AnyEvent, lines=True),
    "exec": CommandOutput(ExecOutput | ExecEnded, lines=True),
    "flow": CommandOutput(FlowResult),
    "init": CommandOutput(InitResult),
    "lineage": CommandOutput(Lineage),
    "list": CommandOutput(list[RunResult]),
    "logs": CommandOutput(LogLine, lines=True),
    "plan": CommandOutput(AnyPlan),
    "profile": CommandOutput(ProfileResult),
    "rehearse": CommandOutput(RehearsalResult),
    "report": CommandOutput(ReportResult),
    "resume": CommandOutput(StatusResult),
    "run": CommandOutput(StatusResult | PlanResult),
    "sample": CommandOutput(SampleResult),
    "schema": CommandOutput(dict[str, Any]),
    "stacks": CommandOutput(StacksResult),
    "status": CommandOutput(StatusResult),
    "stop": CommandOutput(StatusResult),
    "sweep": CommandOutput(SweepResult),
    "up": CommandOutput(UpResult),
    "why": CommandOutput(WhyResult | StepExamples),
}
"""Outputs by the words of the command after `launch`."""
