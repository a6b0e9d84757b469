"""Access to data and checkpoints in folders and object stores."""
