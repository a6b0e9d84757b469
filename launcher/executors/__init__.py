"""Drivers of a run: this process, the first host, a job in a queue, a Ray job."""
