"""Implementations of the CLI's commands; `launcher/cli` parses their arguments."""
