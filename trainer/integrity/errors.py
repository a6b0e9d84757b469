"""Errors of checks of hosts. The entry of the trainer imports them, so they must not need JAX."""


class WrongHostError(Exception):
    """Hosts compute wrong numbers. The update of the step was not applied."""

    def __init__(self, message: str, *, is_here: bool) -> None:
        """`is_here`: whether this process is on one of the hosts."""
        super().__init__(message)
        self.is_here = is_here


class UndecidedError(ArithmeticError):
    """Hosts differ, and which ones compute wrong cannot be decided. No update was applied."""
