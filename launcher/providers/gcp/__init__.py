"""Cloud TPU slices: requested as queued resources, then used as hosts over SSH."""
