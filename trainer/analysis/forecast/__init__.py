"""The time of a compiled step, by following the schedule that the TPU compiler has made."""
