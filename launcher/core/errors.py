"""The error that every provider raises."""


class ProviderError(Exception):
    """Raised when hosts cannot be obtained or are lost, with the reason and a remedy."""
