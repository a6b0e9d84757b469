"""What a job takes from other runs: their end (`after`), and a checkpoint (`init_from`)."""
