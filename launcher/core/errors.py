"""What every provider raises."""


class ProviderError(Exception):
    """Hosts could not be had, or were lost; says why and what to do."""
