"""Access: a stranger becomes a member when the operator confirms the code they were shown.

A user is refused unless the configuration's list or pairing lets them in; for a user on the list,
the list decides. An empty list lets no user in, and there is no wildcard. Sending a message needs
the role *run*. An approval can be answered, and a run stopped, only by the user it works for or by
an administrator. A removed user is a stranger again at once. The text of a refusal is the same for
every cause, so that it does not reveal what exists; the cause is for the log.

A pairing code is 40 random bits, shown once in a direct chat and stored only as a salted hash.
It works once, for ten minutes. A stranger gets a new code, which voids the old one, when the old
one is about to expire or did not reach them. The operator types the code in at a terminal and
confirms it with the roles it gives.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest

import msgspec
from msgspec.structs import replace

from holdfast.core.address import Address, ChatType, Sender
from holdfast.core.approval.approval import Role
from holdfast.core.chat.delivery import DeliveryQueued
from holdfast.core.text.escape import escape
from holdfast.core.types import DeliveryId, Fact, Owner, Value
from holdfast.errors import IllegalTransition


class MemberStatus(StrEnum):
    """The status of a user by pairing."""

    STRANGER = "stranger"
    OFFERED = "offered"  # was shown a code, which may have expired since
    MEMBER = "member"

    @property
    def final(self) -> bool:
        return False


class PairingOffered(Fact, tag="pairing.offered"):
    sender: Sender
    name: str  # chosen by the user, not verified
    salt: str
    digest: str
    expires_at: float
    chat: str = ""  # where they were shown the code; a direct chat


class PairingConfirmed(Fact, tag="pairing.confirmed"):
    sender: Sender
    roles: tuple[Role, ...]
    by: Owner


class PairingFailed(Fact, tag="pairing.failed"):
    """The operator typed a code that does not exist, was used or has expired."""

    by: Owner


class UserRemoved(Fact, tag="user.removed"):
    """A member was removed, or an offer was withdrawn."""

    sender: Sender
    by: Owner


_OfUser = PairingOffered | PairingConfirmed | UserRemoved
Event = _OfUser | PairingFailed

S, P, M = MemberStatus.STRANGER, MemberStatus.OFFERED, MemberStatus.MEMBER

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[MemberStatus, type[_OfUser]], MemberStatus] = {
    (S, PairingOffered): P,
    (P, PairingOffered): P,
    (P, PairingConfirmed): M,
    (P, UserRemoved): S,
    (M, UserRemoved): S,
}


class Members(msgspec.Struct, frozen=True):
    """The recorded state of pairing."""

    roles: Mapping[Sender, frozenset[Role]] = {}  # of the members
    offers: Mapping[Sender, PairingOffered] = {}
    asked: tuple[tuple[float, Sender], ...] = ()  # codes shown in the last hour
    failed: tuple[tuple[float, Owner], ...] = ()  # wrong codes in the last hour

    def status(self, sender: Sender) -> MemberStatus:
        if sender in self.roles:
            return MemberStatus.MEMBER
        return MemberStatus.OFFERED if sender in self.offers else MemberStatus.STRANGER


HOUR_S = 3600.0
CODE_S = 600.0
WORTH_S = 60.0  # a code that is valid for so long is not replaced
OFFERS_PER_USER = 3  # an hour
OFFERS_PER_PLATFORM = 30  # an hour
FAILURES = 10  # an hour, for each person who types codes in
NAME = 64  # characters of a stranger's name


def evolve(members: Members, event: Event, at: float) -> Members:
    """Return `members` after `event`."""
    if isinstance(event, PairingFailed):
        recent = tuple(f for f in members.failed if f[0] > at - HOUR_S)
        return replace(members, failed=(*recent, (at, event.by)))
    status = members.status(event.sender)
    if (status, type(event)) not in TRANSITIONS:
        raise IllegalTransition(
            f"{type(event).__name__} while {event.sender.owner} is a {status} by pairing"
        )
    offers = {s: o for s, o in members.offers.items() if s != event.sender}
    roles = {s: r for s, r in members.roles.items() if s != event.sender}
    match event:
        case PairingOffered():
            live = {s: o for s, o in offers.items() if o.expires_at > at - HOUR_S}
            asked = tuple(a for a in members.asked if a[0] > at - HOUR_S)
            return replace(
                members, offers={**live, event.sender: event}, asked=(*asked, (at, event.sender))
            )
        case PairingConfirmed():
            roles[event.sender] = frozenset(event.roles)
            return replace(members, offers=offers, roles=roles)
        case _:  # UserRemoved
            return replace(members, offers=offers, roles=roles)


class PlatformAccess(Value):
    """The configuration of one platform. No field has a default."""

    users: Mapping[str, frozenset[Role]]  # by the platform's user id; no roles: locked out
    chats: frozenset[ChatType]
    pairing: bool


class AccessPolicy(Value):
    """The access rules: the configuration's lists and the paired members."""

    platforms: Mapping[str, PlatformAccess]
    members: Members


class RefusalCause(StrEnum):
    """The cause of a refusal, for the log and the operator, not for the user."""

    UNKNOWN = "not on any list, not paired"
    ROLE = "lacks the role"
    CHAT = "this kind of chat is not served"
    NOT_OWNER = "works for another owner"
    KNOWN = "on the list or paired already"
    NO_PAIRING = "pairing is off, or not in a direct chat"
    TOO_OFTEN = "too many within an hour"


class AccessGranted(Value):
    roles: frozenset[Role]


class AccessDenied(Value):
    """The refusal; `reason` is shown to the user."""

    reason: str
    cause: RefusalCause


Verdict = AccessGranted | AccessDenied

NOT_HERE = "You may not use this agent here."
NOTHING_TO_ANSWER = "There is nothing here that you may answer."
NOTHING_TO_STOP = "There is nothing here that you may stop."


def roles_of(policy: AccessPolicy, sender: Sender) -> frozenset[Role]:
    """Return the roles of `sender` on a configured platform; an administrator has all roles."""
    rules = policy.platforms.get(sender.platform)
    if rules is None or not sender.user:
        return frozenset()
    paired = policy.members.roles.get(sender, frozenset())
    held = rules.users.get(sender.user, paired)
    return frozenset(Role) if Role.ADMIN in held else held


def may_speak(policy: AccessPolicy, sender: Sender, chat_type: ChatType) -> Verdict:
    """Decide if messages of `sender` reach the agent."""
    roles = roles_of(policy, sender)
    if not roles:
        return AccessDenied(NOT_HERE, RefusalCause.UNKNOWN)
    if chat_type not in policy.platforms[sender.platform].chats:
        return AccessDenied(NOT_HERE, RefusalCause.CHAT)
    return AccessGranted(roles) if Role.RUN in roles else AccessDenied(NOT_HERE, RefusalCause.ROLE)


def may_answer(policy: AccessPolicy, sender: Sender, works_for: Owner) -> Verdict:
    """Decide if `sender` may answer an approval of a run that works for that owner.

    In a shared session, a run works for the user who sent its input.
    """
    return _may(policy, sender, works_for, Role.APPROVE, NOTHING_TO_ANSWER)


def may_stop(policy: AccessPolicy, sender: Sender, works_for: Owner) -> Verdict:
    """Decide if `sender` may stop or steer a run that works for that owner."""
    return _may(policy, sender, works_for, Role.RUN, NOTHING_TO_STOP)


def _may(
    policy: AccessPolicy, sender: Sender, works_for: Owner, needs: Role, otherwise: str
) -> Verdict:
    roles = roles_of(policy, sender)
    if not roles:
        return AccessDenied(otherwise, RefusalCause.UNKNOWN)
    if sender.owner != works_for and Role.ADMIN not in roles:
        return AccessDenied(otherwise, RefusalCause.NOT_OWNER)
    if needs not in roles:
        return AccessDenied(otherwise, RefusalCause.ROLE)
    return AccessGranted(roles)


ENTROPY = 21  # bytes: 5 for the code, the others for its salt
_CODE_BYTES = 5
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's
_LENIENT = str.maketrans("abcdefghijklmnopqrstuvwxyzILO", "ABCDEFGH1JK1MN0PQRSTUVWXYZ110", "- ")


class PairingOffer(Value):
    """The fact to record, and the code to show, which is stored nowhere."""

    fact: PairingOffered
    code: str


class StillGood(Value):
    """The user already has a code that is valid for long enough."""

    expires_at: float


def offer(
    policy: AccessPolicy,
    sender: Sender,
    chat_type: ChatType,
    name: str,
    entropy: bytes,
    now: float,
    chat: str = "",
    *,
    shown: bool = False,
) -> PairingOffer | StillGood | AccessDenied:
    """Make a code for a stranger. `entropy` is `ENTROPY` random bytes, used for nothing else.

    `shown`: the user's last code reached them, as far as is known.
    """
    if len(entropy) != ENTROPY:
        raise ValueError(f"a code needs {ENTROPY} random bytes, not {len(entropy)}")
    if (cause := _no_offer(policy, sender, chat_type, now)) is not None:
        return AccessDenied(NOT_HERE, cause)
    last = policy.members.offers.get(sender)
    if shown and last is not None and _is_live(last, now) and last.expires_at - now >= WORTH_S:
        return StillGood(last.expires_at)
    bits = int.from_bytes(entropy[:_CODE_BYTES], "big")
    code = "".join(_LETTERS[bits >> shift & 31] for shift in range(35, -1, -5))
    salt = entropy[_CODE_BYTES:].hex()
    fact = PairingOffered(
        sender=sender,
        name=escape(name[:NAME]),
        salt=salt,
        digest=_digest(salt, code),
        expires_at=now + CODE_S,
        chat=chat,
    )
    return PairingOffer(fact, code)


def _no_offer(
    policy: AccessPolicy, sender: Sender, chat_type: ChatType, now: float
) -> RefusalCause | None:
    rules = policy.platforms.get(sender.platform)
    if rules is None or not sender.user:
        return RefusalCause.UNKNOWN
    if sender.user in rules.users or sender in policy.members.roles:
        return RefusalCause.KNOWN
    if not rules.pairing or chat_type is not ChatType.DIRECT:
        return RefusalCause.NO_PAIRING
    asked = [who for at, who in policy.members.asked if at > now - HOUR_S]
    by_all = sum(who.platform == sender.platform for who in asked)
    if asked.count(sender) >= OFFERS_PER_USER or by_all >= OFFERS_PER_PLATFORM:
        return RefusalCause.TOO_OFTEN
    return None


class TooOften(Value):
    """There were too many wrong codes; this one was not checked."""

    reason: str
    retry_at: float


NO_SUCH_CODE = "No such code: mistyped, used or expired. The user can get a new one in the chat."


def look_up(
    members: Members, code: str, by: Owner, now: float
) -> PairingOffered | PairingFailed | TooOften:
    """Find the offer with `code`. The caller must record a failure.

    Hyphens, spaces and case are ignored, and letters that look like digits are read as digits.
    """
    failed = [at for at, who in members.failed if who == by and at > now - HOUR_S]
    if len(failed) >= FAILURES:
        return TooOften(f"{len(failed)} wrong codes within an hour.", failed[-FAILURES] + HOUR_S)
    typed = code.translate(_LENIENT)
    for offered in members.offers.values():
        if _is_live(offered, now) and compare_digest(_digest(offered.salt, typed), offered.digest):
            return offered
    return PairingFailed(by=by)


def confirm(
    members: Members, code: str, roles: Collection[Role], by: Owner, now: float
) -> PairingConfirmed | PairingFailed | TooOften:
    """Let in the user who was shown `code`. The caller must record the result, a failure too."""
    found = look_up(members, code, by, now)
    if not isinstance(found, PairingOffered):
        return found
    return PairingConfirmed(sender=found.sender, roles=tuple(sorted(set(roles))), by=by)


def _is_live(offered: PairingOffered, now: float) -> bool:
    # An offer that expires later than possible was recorded before the clock went back.
    return now < offered.expires_at <= now + CODE_S


WELCOME = "You now have access. Send a message to start; /help lists the commands."
LISTED = "has access by the configuration: remove the user there."


def welcome(offered: PairingOffered, name: DeliveryId) -> tuple[DeliveryQueued, ...]:
    """Return the welcome message for the chat where the user asked; none if it is unknown."""
    if not offered.chat:
        return ()
    asked_at = Address(
        platform=offered.sender.platform, chat_type=ChatType.DIRECT, chat=offered.chat
    )
    return (DeliveryQueued(delivery_id=name, address=asked_at, text=WELCOME),)


def _digest(salt: str, code: str) -> str:
    return sha256(f"{salt}:{code}".encode("utf-8", "surrogatepass")).hexdigest()


class NotPaired(Value):
    """There is nothing to remove. `reason` is for the operator, so it may say why."""

    reason: str


def remove(policy: AccessPolicy, sender: Sender, by: Owner) -> UserRemoved | NotPaired:
    """Remove a paired user, or an offer. The configuration's list does not change."""
    if policy.members.status(sender) is not MemberStatus.STRANGER:
        return UserRemoved(sender=sender, by=by)
    rules = policy.platforms.get(sender.platform)
    if rules is not None and sender.user in rules.users:
        return NotPaired(f"{sender.owner} {LISTED}")
    return NotPaired(f"{sender.owner} is not paired.")


class Source(StrEnum):
    """The source of a user's access."""

    CONFIGURATION = "configuration"
    PAIRING = "pairing"
    OFFER = "offer"  # no access yet: the user was shown a code and waits


class Person(Value):
    """A user in the operator's list."""

    sender: Sender
    roles: frozenset[Role]  # in force now: none on a platform that is not configured
    source: Source
    name: str = ""  # of a waiting user; chosen by the user, not verified
    expires_at: float = 0.0  # of a waiting user's code


def people(policy: AccessPolicy, now: float) -> list[Person]:
    """List all users with access, then those who wait for it."""
    listed = [Sender(name, user) for name, r in policy.platforms.items() for user in r.users]
    paired = [sender for sender in policy.members.roles if sender not in listed]
    waiting = [o for o in policy.members.offers.values() if _is_live(o, now)]
    no_roles: frozenset[Role] = frozenset()
    return [
        *(Person(s, roles_of(policy, s), Source.CONFIGURATION) for s in listed),
        *(Person(s, roles_of(policy, s), Source.PAIRING) for s in paired),
        *(Person(o.sender, no_roles, Source.OFFER, o.name, o.expires_at) for o in waiting),
    ]
