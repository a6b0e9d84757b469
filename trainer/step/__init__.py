"""One optimizer update, as a pure function."""
