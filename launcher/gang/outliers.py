"""What differs between hosts whose reports should be equal."""

from collections import Counter
from collections.abc import Mapping

from trainer.contract.protocol.process_names import process_name


def find_outliers(
    reports: Mapping[int, Mapping[str, object]], processes_per_host: int = 1
) -> tuple[list[str], set[int]]:
    """Returns a sentence for each value that is not the same on all hosts, and the outliers.

    An outlier differs from the most common value, or from the first host's in a tie.
    """
    flat = {process: dict(_flatten(reports[process])) for process in sorted(reports)}
    texts: list[str] = []
    processes: set[int] = set()
    for name in sorted({name for report in flat.values() for name in report}):
        values = {process: str(report.get(name, "missing")) for process, report in flat.items()}
        common, _ = Counter(values.values()).most_common(1)[0]
        odd = {process: value for process, value in values.items() if value != common}
        if odd:
            named = {process_name(p, processes_per_host): value for p, value in odd.items()}
            texts.append(_difference(name, named, common))
            processes |= odd.keys()
    return texts, processes


def _difference(name: str, odd: Mapping[str, str], common: str) -> str:
    others = ", ".join(f"{who} has {_short(value)}" for who, value in odd.items())
    return f"{name} differs: {others}; the other hosts have {_short(common)}"


def _flatten(report: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in report.items():
        key = f"{prefix}{name}"
        pairs += _flatten(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return pairs


def _short(value: str) -> str:
    """Shortens a hash to its first digits."""
    return value[:12] if len(value) == 64 else value
