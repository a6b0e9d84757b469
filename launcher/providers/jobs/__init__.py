"""A Ray cluster that is reached by nothing but HTTP: its Jobs API starts `launch` on its head."""
