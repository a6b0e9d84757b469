"""Compares the forecast of `launch plan --compile` with published measurements.

    uv run --extra tpu python benchmarks/published.py [--rows ID ...] [--cache DIR] [--write]

Compiles the job of each row of docs/published/measurements.yaml for its absent pod, and prints the
published speed, the forecast and its error, the parts of the forecast, and the median and the
largest error of each half. A step takes one to ten minutes on two cores. Results are kept in the
folder of `--cache` by a hash of job, cluster and code; `--any-code` also takes results of other
code. A row that cannot be compiled is reported, and the others go on. `ID+best` is the fastest job
of a row.

`--write` merges the results into docs/published/forecasts.json and writes
docs/reference/published.md. Exits with 1 when a row failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.published_compare import FORECASTS, Forecast, compare, stored, summary
from benchmarks.published_rows import ROOT, Row, chosen, digest, load, with_faster, write_files
from benchmarks.published_table import PAGE, page

DOES_NOT_FIT = 1
PACKAGES = ("jax", "libtpu")
SHOWN_EVERY_S = 5.0


def main() -> int:
    """Runs the rows and prints the comparison."""
    options = _options()
    rows = load()
    try:
        wanted = chosen(rows, options.rows)
    except ValueError as error:
        sys.exit(f"published.py: {error}")
    failed = 0
    for number, row in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {row.id}", end=" ", flush=True)
        result = forecast(row, options)
        failed += result.problem is not None
        _print(row, result)
        if options.write:
            _merge(row, result)
    found = stored() if options.write else _cached(wanted, options)
    compared = list(compare(rows if options.write else wanted, found))
    print(*summary(compared), sep="\n")
    if options.write:
        PAGE.write_text(page(rows, found), encoding="utf-8")
        print(f"written: {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", nargs="+", default=[], metavar="ID", help="only these rows")
    parser.add_argument("--cache", type=Path, default=ROOT / "runs" / "published", metavar="DIR")
    parser.add_argument("--any-code", action="store_true", help="also take results of other code")
    parser.add_argument("--timeout", type=float, default=3600, metavar="S", help="seconds per row")
    parser.add_argument("--write", action="store_true", help="write the page and its data")
    return parser.parse_args()


def forecast(row: Row, options: argparse.Namespace) -> Forecast:
    """Returns the row's result from the cache, or compiles its job and stores the result."""
    if kept := next(_results(row, options), None):
        return kept
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = _compile(row, Path(folder), options.timeout)
    result = result.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
    if not result.is_transient:
        options.cache.mkdir(parents=True, exist_ok=True)
        path = options.cache / f"{row.id}.{row.job_hash}.{result.code}.json"
        path.write_text(result.model_dump_json(indent=1))
    return result


def _results(row: Row, options: argparse.Namespace) -> Iterator[Forecast]:
    """Yields the stored results of a row, the newest first."""
    code = "*" if options.any_code else code_hash()
    paths = options.cache.glob(f"{row.id}.{row.job_hash}.{code}.json")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        yield Forecast.model_validate_json(path.read_text())


def _cached(rows: list[Row], options: argparse.Namespace) -> dict[str, Forecast]:
    found = {row.id: next(_results(row, options), None) for row in rows}
    return {name: result for name, result in found.items() if result}


def code_hash() -> str:
    """Returns a hash of the code of launcher and trainer, and of the versions of the compiler."""
    files = [*(ROOT / "trainer").rglob("*.py"), *(ROOT / "launcher").rglob("*.py")]
    texts = [path.read_text(encoding="utf-8") for path in sorted(files)]
    return digest([*texts, *(f"{name} {v}" for name, v in versions().items())])


def versions() -> dict[str, str]:
    """Returns the versions of the packages that the compiled program depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def _compile(row: Row, folder: Path, timeout_s: float) -> Forecast:
    """Runs `launch plan --compile` on the row's job."""
    job, cluster = write_files(row, folder)
    command = [
        *(sys.executable, "-m", "launcher", "plan", str(job), "-c", str(cluster)),
        *(*row.job, "--compile", "-o", "json"),
    ]
    made: dict[str, Any] = {"job": row.job_hash, "code": code_hash(), "versions": versions()}
    output = _run(command, folder, timeout_s)
    if output is None:
        problem = f"not compiled within {timeout_s:.0f} s"
        return Forecast(**made, problem=problem, is_transient=True)
    return Forecast(**made, **read_output(*output))


def _run(command: list[str], folder: Path, timeout_s: float) -> tuple[str, str] | None:
    """Runs a command, and shows on a terminal how long it has run.

    Returns its standard output and error; None after the timeout.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe, began = subprocess.PIPE, time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    ) as child:
        while (ran := time.monotonic() - began) < timeout_s:
            try:
                return child.communicate(timeout=min(SHOWN_EVERY_S, timeout_s - ran))
            except subprocess.TimeoutExpired:
                if sys.stdout.isatty():
                    shown = f"{time.monotonic() - began:.0f} s"
                    print(shown, end="\b" * len(shown), flush=True)
        child.terminate()  # the command ends the compiler
    return None


def read_output(stdout: str, stderr: str) -> dict[str, Any]:
    """Returns the fields of a Forecast that the output of the command has."""
    try:
        found = json.loads(stdout)
    except ValueError:
        return {"problem": f"not compiled: {_reason(stderr)}"}
    if not found["fits"]:
        needed, has = found["hbm_needed_bytes"], found["hbm_available_bytes"]
        return {"problem": f"does not fit: {needed / 2**30:.1f} of {has / 2**30:.2f} GiB"}
    if not found.get("forecast"):
        return {"problem": "the plan has no forecast", "is_transient": True}
    return {"forecast": found["forecast"]}


def _reason(stderr: str) -> str:
    """Returns the message of the JSON error that a command prints last, or the last line."""
    last = (stderr.strip().splitlines() or ["ended without a message"])[-1]
    try:
        return json.loads(last)["message"].partition("\n")[0]
    except (ValueError, KeyError, TypeError):
        return last[:300]


def _print(row: Row, result: Forecast) -> None:
    """Prints the result of a row, with the parts of the forecast."""
    print(f"({result.seconds or 0:.0f} s)", end=" ")
    if result.forecast is None:
        print(result.problem)
        return
    (line,) = compare([row], {row.id: result})
    print(line.text)
    for name, seconds in sorted(result.parts.items(), key=lambda part: -part[1]):
        print(f"    {name:40s} {seconds:9.4f} s {seconds / result.step_time_s:6.1%}")


def _merge(row: Row, result: Forecast) -> None:
    """Adds a result to docs/published/forecasts.json, unless it may be another one next time."""
    if result.is_transient:
        return
    kept = {**stored(), row.id: result}
    order = [other.id for other in with_faster(load())]
    values = {name: kept[name].model_dump(mode="json") for name in order if name in kept}
    FORECASTS.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
