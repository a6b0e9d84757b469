"""What a run reports: events, metrics.jsonl, TensorBoard, W&B, traces."""
