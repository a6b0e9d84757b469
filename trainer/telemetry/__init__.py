"""Reports of a run: events, metrics.jsonl, TensorBoard, W&B, traces."""
