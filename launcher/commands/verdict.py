"""`launch plan --compile`: what the TPU compiler says of the step, from a process of its own."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from launcher.commands import traffic
from launcher.commands.advice import Advice, advise
from launcher.compilation import compilation
from launcher.display import format_bytes, format_seconds, plan_as_json, print_plan
from launcher.exits import BAD_USAGE, INTERRUPTED, JOB_FAILED, OK, fail
from launcher.interrupts import ending_on_signals
from launcher.launch import Launch
from launcher.plan import TrainingLaunch
from launcher.trainer_call import NoAnswerError
from trainer.spec.chips import GiB
from trainer.spec.footprint import footprint
from trainer.spec.model import Model


def tell(launch: Launch, *, shardings: bool, as_json: bool) -> int:
    """The plan with the compiler's verdict; returns the exit code of `launch`."""
    errors = Console(stderr=True)
    if not as_json:
        print_plan(Console(), launch, shardings=shardings)
    try:
        status = errors.status(f"compiling the step for {launch.plan.world.accelerator}")
        with status, ending_on_signals():
            verdict = ask(launch)
    except NoAnswerError as error:
        return fail(errors, f"--compile: {error}", BAD_USAGE)
    except KeyboardInterrupt:
        return fail(errors, "interrupted; the compiler is ended", INTERRUPTED)
    assert isinstance(launch, TrainingLaunch), "else there is no verdict"
    verdict["estimate"] = _estimate(launch)
    advice = advise(launch, verdict)
    if as_json:
        verdict["advice"] = asdict(advice) if advice else None
        print(json.dumps(json.loads(plan_as_json(launch)) | verdict, indent=2))
    else:
        _print(Console(), verdict, advice)
    return OK if verdict["fits"] else fail(errors, refusal(verdict), JOB_FAILED)


def ask(launch: Launch) -> dict[str, Any]:
    """The fields of trainer.estimate.Verdict. Raises NoAnswerError."""
    with compilation(launch) as call:
        return call.answer()


def _estimate(launch: TrainingLaunch) -> dict[str, int] | None:
    """Bytes by part, which the compiler does not tell; None: of a model of the user's own."""
    if not isinstance(launch.job.model, Model):
        return None
    return footprint(launch.job, launch.plan).parts


def _print(console: Console, verdict: dict[str, Any], advice: Advice | None) -> None:
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in verdict["memory"].items())
    lines = [f"compiled in {format_seconds(verdict['compile_s'])}; per device: {parts}"]
    if estimate := verdict["estimate"]:
        lines.append(
            f"of the temporaries, by estimate: gradients {format_bytes(estimate['gradients'])}, "
            f"activations kept for the backward pass {format_bytes(estimate['kept'])}"
        )
    if verdict["evaluation_bytes"]:
        lines.append(f"an evaluation needs {format_bytes(verdict['evaluation_bytes'])}")
    lines.append(verdict["message"] or f"fits: needs {_of(verdict)}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if collectives := verdict["collectives"]:
        console.print(Padding(traffic.table(collectives), (1, 0, 0, 0)))
        console.print(Text(traffic.summary(collectives)), soft_wrap=True)
        if strategies := verdict["strategies"]:
            console.print(Text(traffic.shares(strategies)), soft_wrap=True)
    if advice:
        console.print(Text(advice.text), soft_wrap=True)


def refusal(verdict: dict[str, Any]) -> str:
    """Of a step that does not fit, in one line."""
    if verdict["hbm_needed_bytes"] is None:
        return "does not fit"
    return f"does not fit: needs {_of(verdict)}"


def _of(verdict: dict[str, Any]) -> str:
    needed, available = verdict["hbm_needed_bytes"], verdict["hbm_available_bytes"]
    return f"{needed / GiB:.1f} GiB of {available / GiB:.1f} GiB HBM per device"
