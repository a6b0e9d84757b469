"""Types and helpers that every folder may use."""
