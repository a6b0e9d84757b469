"""The health of a gang: which hosts are silent, stuck or slow, and where in the code. Pure."""
