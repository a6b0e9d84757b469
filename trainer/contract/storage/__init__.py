"""Where data and checkpoints are: folders and object stores."""
