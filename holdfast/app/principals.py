"""Principals: one for each door, with what that door can do."""

from holdfast.core.approval.approval import Role
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import OPERATOR

_ALL_ROLES = frozenset(Role)
_NOT_ADMIN = _ALL_ROLES - {Role.ADMIN}
# LATE-03: what comes in over the network is bound here.
OPERATORS_DOOR = Principal(
    OPERATOR, DoorCapabilities(platform="cli", answerable=True, late=True), _ALL_ROLES
)
NETWORK = Principal(
    OPERATOR, DoorCapabilities(platform="api_server", answerable=True, late=False), _NOT_ADMIN
)
