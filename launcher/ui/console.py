"""What the tables of runs share: the console, and the styles of states."""

from rich.console import Console

from launcher.core.states import RunState

PIPE_WIDTH = 1000
STATE_STYLES = {
    RunState.FAILED: "red", RunState.CANCELLED: "red", RunState.LOST: "red",
    RunState.OVER_BUDGET: "yellow", RunState.FINISHED: "green",
}  # fmt: skip


def table_console() -> Console:
    """Returns a console as wide as the terminal or, in a pipe, wide enough for any folder."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)
