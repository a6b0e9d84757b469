"""The list of generated pages, which tests/docs/test_generated.py compares with the files."""

from collections.abc import Callable
from pathlib import Path

from docs.generate import cli, events, keys, outputs

REFERENCE = Path(__file__).parents[1] / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "job-file.md": keys.job_page,
    "cluster-file.md": keys.cluster_page,
    "flow-file.md": keys.flow_page,
    "cli.md": cli.page,
    "command-output.md": outputs.page,
    "events-and-metrics.md": events.page,
}
"""Function that returns the text of a page, by the name of its file in docs/reference/."""
