"""Delivery administration for the operator: list undelivered chat messages, resend or drop one."""

from collections.abc import Sequence

from holdfast.core.intents import Principal
from holdfast.core.types import DeliveryId, Value
from holdfast.engine.chats.outbox import Outbox
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.journal.audit import entry_of
from holdfast.journal.journal import Outbound


class DeliveryAdmin(Value):
    """Administers the outbox, for the operator only."""

    _outbox: Outbox
    _audit: Audit

    async def unsent(self, by: Principal, *, everything: bool) -> Sequence[Outbound]:
        """List undelivered messages, newest first; of abandoned ones only those that matter."""
        check_admin(by)
        return await self._outbox.listed(everything=everything)

    async def message(self, by: Principal, delivery_id: DeliveryId) -> Outbound:
        """Return one message; refused with `delivery_not_found`."""
        check_admin(by)
        return await self._outbox.find(delivery_id)

    async def resend(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Send a message that was held or given up."""
        await self._note(by, delivery_id, "message.resent")
        await self._outbox.release(delivery_id)

    async def drop(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Give up a message that was not sent."""
        await self._note(by, delivery_id, "message.dropped")
        await self._outbox.drop(delivery_id)

    async def _note(self, by: Principal, delivery_id: DeliveryId, kind: str) -> None:
        """Record an order in the audit before it counts."""
        found = await self.message(by, delivery_id)
        await self._audit(entry_of(by, kind, run_id=found.queued.of_run, what=delivery_id))
