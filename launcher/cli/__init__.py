"""The command line: parses it with Typer, calls one function, exits."""

import gc

COLLECTION_THRESHOLD = 50_000
"""Objects that a command creates between collections. Most belong to modules and stay. With the
default of Python 3.11, 700, collections take a tenth of the time of imports."""

gc.set_threshold(COLLECTION_THRESHOLD)
