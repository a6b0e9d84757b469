"""What the commands of the CLI do; `launcher/cli` parses them."""
