"""Wrong numbers: the check of hosts against each other, and replays of steps for audits."""
