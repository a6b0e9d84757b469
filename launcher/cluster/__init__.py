"""The cluster file: the schema of every provider's section, and where files are found."""
