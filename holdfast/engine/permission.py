"""Permission checks that do not depend on a session."""

from holdfast.core.approval.approval import Role
from holdfast.core.intents import Principal
from holdfast.errors import Refused


def check_admin(by: Principal) -> None:
    """Refuse a caller that is not the operator."""
    if Role.ADMIN not in by.roles:
        raise Refused("admin_only", "Only the operator may do that, at a terminal.")
