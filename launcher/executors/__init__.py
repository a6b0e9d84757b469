"""Where a run is driven from: this process, the first host, a queue, a Ray job."""
