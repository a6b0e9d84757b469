"""Reports of runs: one page of HTML each, made from the files of a run's folder."""
