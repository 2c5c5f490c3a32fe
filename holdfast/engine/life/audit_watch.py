"""The audit as the engine writes it: whether it can be written now is told, once, and in health."""

import logging

from holdfast.engine.runs.approvals import Audit
from holdfast.errors import JournalUnavailable
from holdfast.journal.audit import AuditEntry

log = logging.getLogger(__name__)


class AuditWatch:
    """Writes to the audit, and remembers why the last attempt failed."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self.trouble = ""  # empty: it can be written, as far as is known

    async def __call__(self, entry: AuditEntry) -> None:
        try:
            await self._audit(entry)
        except JournalUnavailable as error:
            if not self.trouble:
                log.warning("work waits for the audit", extra={"reason": str(error)})
            self.trouble = str(error)
            raise
        if self.trouble:
            log.info("audit can be written again")
            self.trouble = ""
