"""What the commands of the CLI do; cli.py and its neighbours parse and print."""
