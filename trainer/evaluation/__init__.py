"""Validation loss, multiple choice, generated text."""
