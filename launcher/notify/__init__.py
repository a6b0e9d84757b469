"""Notifications of a run's events: by HTTP, by e-mail, or by a command."""
