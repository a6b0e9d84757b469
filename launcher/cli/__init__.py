"""The command line: parses it with Typer, calls one function, exits."""
