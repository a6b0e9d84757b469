"""The `launch` command. `python -m launcher` is the same."""

import signal
from functools import partial


def main() -> None:
    """Imports the command line, and runs it.

    Ctrl-C during the imports ends the process by its signal, without a traceback: nothing has
    begun.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from launcher.cli.app import app
    from launcher.core.quick_exit import run_and_exit

    signal.signal(signal.SIGINT, handler)
    run_and_exit(partial(app, prog_name="launch"))


if __name__ == "__main__":
    main()
