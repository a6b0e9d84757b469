"""`python -m launcher` is `launch`."""

from launcher.cli import app

app(prog_name="launch")
