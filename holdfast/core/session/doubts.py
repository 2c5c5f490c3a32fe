"""Decide what happens to unfinished work when a start finds reason to doubt its records.

If the wall clock went back during a reboot, it is unknown if an approval request is still valid.
If the audit is older than the journal, it is unknown if a request was answered. In both cases
the user is asked again. A journal that was restored from a backup lacks everything since the
backup: a run in it may have gone on, been approved and been answered. So nothing in it continues
by itself: its runs fail with an explanation, and a message that may have been sent is held.
"""

from holdfast.core.approval.approval import GRANT_S, Grant
from holdfast.core.chat import delivery
from holdfast.core.chat.delivery import Delivery
from holdfast.core.life.evidence import Doubt
from holdfast.core.run import run
from holdfast.core.session import answers, session
from holdfast.core.session.session import Session
from holdfast.core.types import Fact

RESTORED_CODE = "restored"
RESTORED_TEXT = (
    "The journal was restored from a backup. This run may have gone on after the backup was made, "
    "so it was not continued. Check what it has done; if you still need it, send the request again."
)
RESTORED_REASON = "the journal was restored from a backup"
_ASK_AGAIN = {
    "clock": "the machine's clock went back while it was off",
    "audit": "the audit is older than the journal",
}
HELD_REASON = "the journal was restored from a backup: it may have been sent already"


def settle(now: Session, doubt: Doubt) -> tuple[Fact, ...]:
    """Return the facts that settle a session's unfinished work under `doubt`. Idempotent."""
    if doubt is not Doubt.RESTORED:
        return answers.ask_again(now, _ASK_AGAIN[doubt])
    facts: list[Fact] = []
    for found in now.runs.values():
        facts += answers.withdraw(now, found.id, RESTORED_REASON)
        facts += session.give_up(found, RESTORED_CODE)
        facts.append(
            run.RunFailed(
                run_id=found.id, code=RESTORED_CODE, error=RESTORED_TEXT, usage=found.usage
            )
        )
    return tuple(facts)


def hold(message: Delivery) -> tuple[delivery.Event, ...]:
    """Return the facts that hold an unsent message after a restore. Idempotent."""
    held = delivery.SendHeld(delivery_id=message.id, reason=HELD_REASON)
    match message.status:
        case delivery.DeliveryStatus.HELD:
            return ()
        case delivery.DeliveryStatus.SENDING:
            return (delivery.SendDoubted(delivery_id=message.id, reason=HELD_REASON), held)
        case _:
            return (held,)


def granted_since(grants: tuple[Grant, ...], since: float) -> tuple[Grant, ...]:
    """Return the grants given since then; the age of an older one is unknown."""
    return tuple(g for g in grants if g.expires_at - GRANT_S >= since)
