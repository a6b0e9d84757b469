"""How two runs differ: their jobs, code, libraries and clusters, their examples and their losses.

Everything here is computed from the records of runs, which `launcher.runs.run_record` reads.
"""
