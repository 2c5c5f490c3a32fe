"""Access: a stranger becomes a member when the operator confirms the code they were shown.

Everybody is refused who is not let in: by the configuration's list, which has the last word
on whom it names, or by pairing. An empty list lets nobody in, and there is no name for all.
Who may speak needs the role *run*. An approval is answered, and a run stopped, by the one it
works for, or by an administrator; whoever was removed is a stranger again, at once. A refusal
reads the same whatever its cause, so that it tells nobody what exists; the cause is for us.

A pairing code is 40 random bits, shown once in a direct chat and kept only as a salted hash.
It works once, for ten minutes; its stranger gets another when it is about to run out, or when
it did not reach them: then the first is void. The operator
types it in at a terminal, where it is confirmed with the roles it is to give.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest

import msgspec
from msgspec.structs import replace

from holdfast.core.address import Address, ChatType, Sender
from holdfast.core.approval import Role
from holdfast.core.delivery import DeliveryQueued
from holdfast.core.execution import escape
from holdfast.core.types import DeliveryId, Fact, Owner, Value
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    """What somebody is by pairing."""

    STRANGER = "stranger"
    OFFERED = "offered"  # was shown a code, which may have run out since
    MEMBER = "member"

    @property
    def final(self) -> bool:
        return False


class PairingOffered(Fact, tag="pairing.offered"):
    sender: Sender
    name: str  # what they call themselves; nobody has checked it
    salt: str
    digest: str
    expires_at: float
    chat: str = ""  # where they were shown the code; a direct chat


class PairingConfirmed(Fact, tag="pairing.confirmed"):
    sender: Sender
    roles: tuple[Role, ...]
    by: Owner


class PairingFailed(Fact, tag="pairing.failed"):
    """Somebody typed a code that is none, was used or has run out."""

    by: Owner


class UserRemoved(Fact, tag="user.removed"):
    """A member is one no more, or an offer is withdrawn."""

    sender: Sender
    by: Owner


_OfUser = PairingOffered | PairingConfirmed | UserRemoved
Event = _OfUser | PairingFailed

S, P, M = Status.STRANGER, Status.OFFERED, Status.MEMBER

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[_OfUser]], Status] = {
    (S, PairingOffered): P,
    (P, PairingOffered): P,
    (P, PairingConfirmed): M,
    (P, UserRemoved): S,
    (M, UserRemoved): S,
}


class Members(msgspec.Struct, frozen=True):
    """What the facts say of pairing."""

    roles: Mapping[Sender, frozenset[Role]] = {}  # of the members
    offers: Mapping[Sender, PairingOffered] = {}
    asked: tuple[tuple[float, Sender], ...] = ()  # codes shown in the last hour
    failed: tuple[tuple[float, Owner], ...] = ()  # wrong codes in the last hour

    def status(self, sender: Sender) -> Status:
        if sender in self.roles:
            return Status.MEMBER
        return Status.OFFERED if sender in self.offers else Status.STRANGER


HOUR_S = 3600.0
CODE_S = 600.0
WORTH_S = 60.0  # a code that is good for so long is not replaced
OFFERS_PER_USER = 3  # an hour
OFFERS_PER_PLATFORM = 30  # an hour
FAILURES = 10  # an hour, of one who types codes in
NAME = 64  # characters of a stranger's name


def evolve(members: Members, event: Event, at: float) -> Members:
    """What `event` means for who is let in."""
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
                members,
                offers={**live, event.sender: event},
                asked=(*asked, (at, event.sender)),
            )
        case PairingConfirmed():
            roles[event.sender] = frozenset(event.roles)
            return replace(members, offers=offers, roles=roles)
        case _:  # UserRemoved
            return replace(members, offers=offers, roles=roles)


class Rules(Value):
    """What the configuration says of one platform. Nothing has a default."""

    users: Mapping[str, frozenset[Role]]  # by the platform's own id; no roles: shut out
    chats: frozenset[ChatType]
    pairing: bool


class Policy(Value):
    """Who may do what: the configuration's lists, and who was let in by pairing."""

    platforms: Mapping[str, Rules]
    members: Members


class Cause(StrEnum):
    """Why somebody was refused. For the log and the operator, not for them."""

    UNKNOWN = "not on any list, not paired"
    ROLE = "lacks the role"
    CHAT = "this kind of chat is not served"
    NOT_OWNER = "works for somebody else"
    KNOWN = "on the list or paired already"
    NO_PAIRING = "pairing is off, or not in a direct chat"
    TOO_OFTEN = "too many within an hour"


class Allowed(Value):
    roles: frozenset[Role]


class Denied(Value):
    """`reason` is for the one who asked."""

    reason: str
    cause: Cause


Verdict = Allowed | Denied

NOT_HERE = "You may not use this agent here."
NOTHING_TO_ANSWER = "There is nothing here that you may answer."
NOTHING_TO_STOP = "There is nothing here that you may stop."
NOTHING_TO_SEE = "There is nothing here that you may see."


def roles_of(policy: Policy, sender: Sender) -> frozenset[Role]:
    """What `sender` may do on a platform that is configured; an administrator may do all."""
    rules = policy.platforms.get(sender.platform)
    if rules is None or not sender.user:
        return frozenset()
    paired = policy.members.roles.get(sender, frozenset())
    held = rules.users.get(sender.user, paired)
    return frozenset(Role) if Role.ADMIN in held else held


def may_speak(policy: Policy, sender: Sender, chat_type: ChatType) -> Verdict:
    """Whether words of `sender` reach the agent."""
    roles = roles_of(policy, sender)
    if not roles:
        return Denied(NOT_HERE, Cause.UNKNOWN)
    if chat_type not in policy.platforms[sender.platform].chats:
        return Denied(NOT_HERE, Cause.CHAT)
    return Allowed(roles) if Role.RUN in roles else Denied(NOT_HERE, Cause.ROLE)


def may_answer(policy: Policy, sender: Sender, works_for: Owner) -> Verdict:
    """Whether `sender` may answer an approval of a run that works for that owner.

    In a session that several share it works for the one whose words it was given.
    """
    return _may(policy, sender, works_for, Role.APPROVE, NOTHING_TO_ANSWER)


def may_stop(policy: Policy, sender: Sender, works_for: Owner) -> Verdict:
    """Whether `sender` may stop, or steer, a run that works for that owner."""
    return _may(policy, sender, works_for, Role.RUN, NOTHING_TO_STOP)


def may_see(policy: Policy, sender: Sender, owner: Owner) -> Verdict:
    """Whether `sender` may read what belongs to that owner. Whoever may do something may see."""
    return _may(policy, sender, owner, None, NOTHING_TO_SEE)


def _may(
    policy: Policy, sender: Sender, works_for: Owner, needs: Role | None, otherwise: str
) -> Verdict:
    roles = roles_of(policy, sender)
    if not roles:
        return Denied(otherwise, Cause.UNKNOWN)
    if sender.owner != works_for and Role.ADMIN not in roles:
        return Denied(otherwise, Cause.NOT_OWNER)
    if needs is not None and needs not in roles:
        return Denied(otherwise, Cause.ROLE)
    return Allowed(roles)


ENTROPY = 21  # bytes: 5 for the code, the rest its salt
_CODE_BYTES = 5
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's
_LENIENT = str.maketrans("abcdefghijklmnopqrstuvwxyzILO", "ABCDEFGH1JK1MN0PQRSTUVWXYZ110", "- ")


class Offer(Value):
    """What to write down, and the code to show: it is nowhere else."""

    fact: PairingOffered
    code: str


class StillGood(Value):
    """They have a code already that is worth using."""

    expires_at: float


def offer(
    policy: Policy,
    sender: Sender,
    chat_type: ChatType,
    name: str,
    entropy: bytes,
    now: float,
    chat: str = "",
    *,
    shown: bool = False,
) -> Offer | StillGood | Denied:
    """A code for a stranger. `entropy` is `ENTROPY` random bytes, used for nothing else.

    `shown`: their last one reached them, as far as is known.
    """
    if len(entropy) != ENTROPY:
        raise ValueError(f"a code takes {ENTROPY} random bytes, not {len(entropy)}")
    if (cause := _no_offer(policy, sender, chat_type, now)) is not None:
        return Denied(NOT_HERE, cause)
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
    return Offer(fact, code)


def _no_offer(policy: Policy, sender: Sender, chat_type: ChatType, now: float) -> Cause | None:
    rules = policy.platforms.get(sender.platform)
    if rules is None or not sender.user:
        return Cause.UNKNOWN
    if sender.user in rules.users or sender in policy.members.roles:
        return Cause.KNOWN
    if not rules.pairing or chat_type is not ChatType.DIRECT:
        return Cause.NO_PAIRING
    asked = [who for at, who in policy.members.asked if at > now - HOUR_S]
    by_all = sum(who.platform == sender.platform for who in asked)
    if asked.count(sender) >= OFFERS_PER_USER or by_all >= OFFERS_PER_PLATFORM:
        return Cause.TOO_OFTEN
    return None


class TooOften(Value):
    """So many codes were wrong that this one was not even looked at."""

    reason: str
    retry_at: float


NO_SUCH_CODE = "No such code: mistyped, used or expired. The one who asks can get another."


def look_up(
    members: Members, code: str, by: Owner, now: float
) -> PairingOffered | PairingFailed | TooOften:
    """Who was shown `code`. Write down a failure.

    Hyphens, spaces and case do not count, nor do letters that look like digits.
    """
    failed = [at for at, who in members.failed if who == by and at > now - HOUR_S]
    if len(failed) >= FAILURES:
        return TooOften(
            f"{len(failed)} wrong codes within an hour.",
            failed[-FAILURES] + HOUR_S,
        )
    typed = code.translate(_LENIENT)
    for offered in members.offers.values():
        if _is_live(offered, now) and compare_digest(_digest(offered.salt, typed), offered.digest):
            return offered
    return PairingFailed(by=by)


def confirm(
    members: Members, code: str, roles: Collection[Role], by: Owner, now: float
) -> PairingConfirmed | PairingFailed | TooOften:
    """Let in whoever was shown `code`. Write down what comes back, a failure too."""
    found = look_up(members, code, by, now)
    if not isinstance(found, PairingOffered):
        return found
    return PairingConfirmed(sender=found.sender, roles=tuple(sorted(set(roles))), by=by)


def _is_live(offered: PairingOffered, now: float) -> bool:
    # One that runs out later than any could was written by a clock that went back.
    return now < offered.expires_at <= now + CODE_S


WELCOME = "You are in. Say what is to be done; /help shows what else can be said."


def welcome(offered: PairingOffered, name: DeliveryId) -> tuple[DeliveryQueued, ...]:
    """Word for one who was let in, where they asked; none if nobody knows where that was."""
    if not offered.chat:
        return ()
    asked_at = Address(
        platform=offered.sender.platform, chat_type=ChatType.DIRECT, chat=offered.chat
    )
    return (DeliveryQueued(delivery_id=name, address=asked_at, text=WELCOME),)


def _digest(salt: str, code: str) -> str:
    return sha256(f"{salt}:{code}".encode("utf-8", "surrogatepass")).hexdigest()


class NotPaired(Value):
    """There is nothing to remove. `reason` is for the operator, and may say why."""

    reason: str


def remove(policy: Policy, sender: Sender, by: Owner) -> UserRemoved | NotPaired:
    """Take back what pairing gave, or an offer. The configuration's list is not touched."""
    if policy.members.status(sender) is not Status.STRANGER:
        return UserRemoved(sender=sender, by=by)
    rules = policy.platforms.get(sender.platform)
    if rules is not None and sender.user in rules.users:
        return NotPaired(f"{sender.owner} is let in by the configuration: take it out there.")
    return NotPaired(f"{sender.owner} is not paired.")


class Source(StrEnum):
    """By what somebody is let in, if they are."""

    CONFIGURATION = "configuration"
    PAIRING = "pairing"
    OFFER = "offer"  # they were shown a code, and wait


class Person(Value):
    """One of those the operator may want to know of."""

    sender: Sender
    roles: frozenset[Role]  # as they count now: none on a platform that is not configured
    source: Source
    name: str = ""  # of one who waits: what they call themselves; nobody has checked it
    expires_at: float = 0.0  # of their code


def people(policy: Policy, now: float) -> list[Person]:
    """Everybody who is let in, then those who wait for it."""
    listed = [Sender(name, user) for name, r in policy.platforms.items() for user in r.users]
    paired = [sender for sender in policy.members.roles if sender not in listed]
    waiting = [o for o in policy.members.offers.values() if _is_live(o, now)]
    nothing: frozenset[Role] = frozenset()
    return [
        *(Person(s, roles_of(policy, s), Source.CONFIGURATION) for s in listed),
        *(Person(s, roles_of(policy, s), Source.PAIRING) for s in paired),
        *(Person(o.sender, nothing, Source.OFFER, o.name, o.expires_at) for o in waiting),
    ]
