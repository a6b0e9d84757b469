"""The job file: its schema, and errors with file, line and key."""
