"""The steps of a flow and their order; pure, except for reading its file."""
