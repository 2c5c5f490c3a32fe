"""Answers to approvals: /approve, /deny.

The request that is meant is looked up first and answered by its id, so that what is told is what
was allowed, whatever else happens in the meantime.
"""

from collections.abc import Sequence

from holdfast.commands.phrases import code, count
from holdfast.core.approval import ApprovalRequested, Choice
from holdfast.gateway import Chat

_PREFIX = "apr_"  # every request's; it says nothing about which
_WORDS = {
    Choice.ONCE: "Allowed once",
    Choice.SESSION: "Allowed in this session",
    Choice.ALWAYS: "Allowed always",
    Choice.DENY: "Denied",
}


async def settle(chat: Chat, choice: Choice, named: str) -> str:
    """Answer the request whose id begins with `named`, or the oldest; tell how many are left."""
    pending = (await chat.status()).approvals
    if not pending:
        return "Nothing waits for an approval."
    match _meant(pending, named):
        case [asked]:
            recorded = await chat.answer(choice, asked.request_id)
        case []:
            return f"Nothing waits under {code(named)}. /status lists what does."
        case several:
            ids = ", ".join(code(asked.request_id) for asked in several)
            return f"Say which of {len(several)}: {ids}."
    left = len((await chat.status()).approvals)
    return f"{_WORDS[recorded]}: {code(asked.command)}\n{_left(left)}".strip()


def _meant(pending: Sequence[ApprovalRequested], named: str) -> list[ApprovalRequested]:
    if not named:
        return list(pending[:1])
    wanted = named.lower().removeprefix(_PREFIX)
    return [a for a in pending if wanted and a.request_id.removeprefix(_PREFIX).startswith(wanted)]


def _left(number: int) -> str:
    return (
        f"{count(number, 'more approval')} waiting: /status lists what is asked." if number else ""
    )
