"""Whether a gang gets on: who is silent, stuck or slow, and where it stands. Pure."""
