"""A text that must not be seen."""


class Secret:
    """Printing or formatting it shows stars."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself. Every use of this word is a place to look at twice."""
        return self._value

    def __repr__(self) -> str:  # type: ignore[explicit-override]  # typing.override is 3.12
        return "********"
