"""/approve and /deny: answer approval requests.

The request is looked up first and answered by its id, so that the reply names what was allowed,
whatever happens in the meantime.
"""

from collections.abc import Sequence

from holdfast.commands.command import Command
from holdfast.commands.phrases import code, count
from holdfast.core.approval.approval import ApprovalRequested, Choice, Role
from holdfast.gateway import CommandTarget

NOTHING_WAITS = "Nothing waits for an approval."
_PREFIX = "apr_"  # of every request id
_NAME = 4  # characters of an id without its prefix, before a reason
_REPLIES = {
    Choice.ONCE: "Allowed once",
    Choice.SESSION: "Allowed in this session",
    Choice.ALWAYS: "Allowed always",
    Choice.DENY: "Denied",
}
_YES = frozenset(Choice) - {Choice.DENY}


async def _approve(chat: CommandTarget, rest: str) -> str:
    words = rest.split()
    choices = [Choice(word.lower()) for word in words if word.lower() in _YES]
    ids = [word for word in words if word.lower() not in _YES]
    if len(choices) > 1 or len(ids) > 1:
        return "/approve takes once or session, and the id of a request; both are optional."
    return await _settle(chat, choices[0] if choices else Choice.ONCE, ids[0] if ids else "")


async def _deny(chat: CommandTarget, rest: str) -> str:
    """Deny, with what is said as the reason. A first word that is an id names the request."""
    first, _, reason = rest.strip().partition(" ")
    if not first.lower().startswith(_PREFIX):
        is_long = not reason or len(first) >= _NAME  # "a" may be the first word of a sentence
        if not is_long or not first or not _meant((await chat.status()).approvals, first):
            first, reason = "", rest
    return await _settle(chat, Choice.DENY, first, reason.strip())


async def _settle(chat: CommandTarget, choice: Choice, named: str, reason: str = "") -> str:
    """Answer the request whose id begins with `named`, or the only one; say how many are left.

    Without an id, /deny answers the oldest. /approve answers none of several, because the person
    looks at the newest.
    """
    pending = (await chat.status()).approvals
    if not pending:
        return NOTHING_WAITS
    if not named and choice is Choice.DENY:
        pending = pending[:1]
    match _meant(pending, named):
        case [asked]:
            recorded = await chat.answer(choice, asked.request_id, reason)
        case []:
            return f"There is no request {code(named)}. /status lists them."
        case several:
            ids = ", ".join(code(asked.request_id) for asked in several)
            return f"{len(several)} requests match: {ids}. Add the id."
    left = len((await chat.status()).approvals)
    more = f"\n{count(left, 'more approval')} waiting: /status lists them." if left else ""
    return f"{_REPLIES[recorded]}: {code(asked.command)}{more}"


def _meant(pending: Sequence[ApprovalRequested], named: str) -> list[ApprovalRequested]:
    if not named:
        return list(pending)
    wanted = named.lower().removeprefix(_PREFIX)
    return [a for a in pending if wanted and a.request_id.removeprefix(_PREFIX).startswith(wanted)]


_APPROVE = "Allow a request that waits for approval; add the id if there are several."
_DENY = "Deny the oldest request, or the one with this id; the model reads the reason."
COMMANDS = (
    Command("approve", "[once|session] [id]", _APPROVE, Role.APPROVE, _approve),
    Command("deny", "[id] [reason]", _DENY, Role.APPROVE, _deny),
)
