"""`python -m launcher` is `launch`."""

from launcher.cli.app import app

app(prog_name="launch")
