"""The cluster file: the schema of each provider's section, and the lookup of files."""
