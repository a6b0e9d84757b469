"""Text to global batches: tokenize once, pack into sequences, read in a shuffled order."""
