"""Reference pages that are generated from the code: `uv run python -m docs.generate`."""
