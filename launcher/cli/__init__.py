"""The command line: parses it with Typer, calls one function, exits."""

import gc

MODULE_OBJECTS = 50_000
"""Objects that a command creates between collections. Most belong to modules and stay. With
Python's default of 700, collections take a tenth of the time of imports."""

gc.set_threshold(MODULE_OBJECTS)
