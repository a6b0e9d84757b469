"""Traces a step again under explicit axis types."""
