"""What a conversation was asked for on the command line."""

from msgspec.structs import replace

from holdfast.core.types import Value


class Wish(Value):
    """Where and how to talk."""

    workspace: str
    insists: bool  # the workspace was named, and is not merely where we stand
    session_id: str = ""  # empty: a new one
    owner: str = ""  # whose that is; empty: one's own
    goes_on: bool = False  # in the session that was spoken in last
    instructions: str = ""
    model: str = ""
    expected: str = ""  # the model that somebody has set; empty if nobody has

    def within(self, session_id: str, owner: str = "") -> "Wish":
        """The same, in that session, where that works."""
        return replace(self, session_id=session_id, owner=owner, goes_on=False)

    def elsewhere(self) -> "Wish":
        """The same, where the session works already."""
        return replace(self, workspace="")
