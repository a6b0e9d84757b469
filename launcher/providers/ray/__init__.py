"""Ray nodes of our own: starts them, watches them, talks to them."""
