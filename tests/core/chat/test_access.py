"""Nobody is let in by accident, and a refusal tells nobody what exists."""

from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.core.address import ChatType, Sender
from holdfast.core.approval.approval import Role
from holdfast.core.chat.access import (
    CODE_S,
    ENTROPY,
    FAILURES,
    HOUR_S,
    LISTED,
    OFFERS_PER_PLATFORM,
    OFFERS_PER_USER,
    WORTH_S,
    AccessDenied,
    AccessGranted,
    AccessPolicy,
    Event,
    Members,
    MemberStatus,
    NotPaired,
    PairingConfirmed,
    PairingFailed,
    PairingOffer,
    PairingOffered,
    Person,
    PlatformAccess,
    RefusalCause,
    Source,
    StillGood,
    TooOften,
    UserRemoved,
    Verdict,
    confirm,
    evolve,
    look_up,
    may_answer,
    may_speak,
    may_stop,
    offer,
    people,
    remove,
    roles_of,
    welcome,
)
from holdfast.core.types import OPERATOR, DeliveryId, Owner
from holdfast.errors import IllegalTransition

ALL = frozenset(Role)
USER = frozenset({Role.READ, Role.RUN, Role.APPROVE})
ANN, BOB, EVE = (Sender("telegram", name) for name in ("ann", "bob", "eve"))
CHATS = frozenset({ChatType.DIRECT, ChatType.GROUP})
DIRECT = ChatType.DIRECT
NOBODY = Members()


def policy(
    members: Members = NOBODY, pairing: bool = True, **users: frozenset[Role]
) -> AccessPolicy:
    return AccessPolicy({"telegram": PlatformAccess(users, CHATS, pairing)}, members)


def paired(**users: frozenset[Role]) -> Members:
    return Members(roles={Sender("telegram", user): roles for user, roles in users.items()})


def cause(verdict: Verdict) -> RefusalCause | None:
    return verdict.cause if isinstance(verdict, AccessDenied) else None


ACTS: Mapping[str, Callable[[AccessPolicy, Sender], Verdict]] = {
    "speak": lambda p, sender: may_speak(p, sender, DIRECT),
    "answer": lambda p, sender: may_answer(p, sender, ANN.owner),
    "stop": lambda p, sender: may_stop(p, sender, ANN.owner),
}
NEEDS = {"speak": Role.RUN, "answer": Role.APPROVE, "stop": Role.RUN}


@pytest.mark.fault("F-34")
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    "empty",
    [
        AccessPolicy({}, NOBODY),
        AccessPolicy({}, paired(ann=ALL)),
        policy(),
        policy(ann=frozenset()),
        AccessPolicy({"discord": PlatformAccess({"ann": ALL}, CHATS, True)}, NOBODY),
        AccessPolicy(
            {"telegram": PlatformAccess({"*": ALL, "": ALL, "Ann": ALL}, CHATS, True)}, NOBODY
        ),
    ],
    ids=["nothing", "platform gone", "empty list", "no roles", "other platform", "other names"],
)
def test_a_user_on_no_list_is_refused(empty: AccessPolicy, act: str) -> None:
    assert cause(ACTS[act](empty, ANN)) is RefusalCause.UNKNOWN
    assert cause(ACTS[act](empty, Sender("telegram", ""))) is RefusalCause.UNKNOWN


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("role", Role)
def test_each_role_opens_what_it_names_and_admin_opens_all(role: Role, act: str) -> None:
    for let_in in (policy(ann=frozenset({role})), policy(paired(ann=frozenset({role})))):
        verdict = ACTS[act](let_in, ANN)
        if role is Role.ADMIN:
            assert verdict == AccessGranted(ALL)
        elif NEEDS[act] is role:
            assert verdict == AccessGranted(frozenset({role}))
        else:
            assert cause(verdict) is RefusalCause.ROLE


@pytest.mark.fault("F-34")
@pytest.mark.parametrize("act", ["answer", "stop"])
def test_only_the_one_it_works_for_and_an_administrator_may(act: str) -> None:
    everybody = policy(ann=USER, bob=USER, eve=ALL)
    ask = ACTS[act]
    assert ask(everybody, ANN) == AccessGranted(USER)
    assert cause(ask(everybody, BOB)) is RefusalCause.NOT_OWNER, "the owner of another session"
    assert ask(everybody, EVE) == AccessGranted(ALL)
    namesake = AccessPolicy(
        {**everybody.platforms, "discord": PlatformAccess({"ann": USER}, CHATS, True)}, NOBODY
    )
    assert cause(ask(namesake, Sender("discord", "ann"))) is RefusalCause.NOT_OWNER


@pytest.mark.fault("F-34")
@pytest.mark.parametrize("act", ACTS)
def test_a_removed_member_is_a_stranger_at_once_in_their_own_session_too(act: str) -> None:
    before = policy(paired(ann=USER))
    removed = remove(before, ANN, OPERATOR)
    assert removed == UserRemoved(sender=ANN, by=OPERATOR)
    assert isinstance(ACTS[act](before, ANN), AccessGranted)
    after = policy(evolve(before.members, removed, 0.0))
    assert cause(ACTS[act](after, ANN)) is RefusalCause.UNKNOWN


@pytest.mark.fault("F-34")
@pytest.mark.parametrize("act", ACTS)
def test_a_refusal_reads_the_same_whatever_its_cause(act: str) -> None:
    lists = policy(ann=frozenset({Role.READ}), bob=USER)
    shut = AccessPolicy({"telegram": PlatformAccess({"bob": USER}, frozenset(), True)}, NOBODY)
    verdicts = [ACTS[act](p, who) for p in (lists, shut) for who in (ANN, BOB, EVE)]
    refused = [v for v in verdicts if isinstance(v, AccessDenied)]
    assert len({v.cause for v in refused}) > 1
    assert len({v.reason for v in refused}) == 1
    assert not any(word in refused[0].reason for word in ("ann", "bob", "role", "list", "owner"))


@pytest.mark.parametrize("chat_type", ChatType)
def test_even_an_administrator_needs_a_configured_platform(
    chat_type: ChatType,
) -> None:
    verdict = may_speak(policy(ann=ALL), ANN, chat_type)
    assert cause(verdict) is (None if chat_type in CHATS else RefusalCause.CHAT)


def test_for_listed_users_the_configuration_decides() -> None:
    members = paired(ann=ALL, bob=USER)
    assert roles_of(policy(members, ann=frozenset({Role.READ})), ANN) == {Role.READ}
    assert roles_of(policy(members, ann=frozenset()), ANN) == frozenset()
    assert roles_of(policy(members, ann=frozenset()), BOB) == USER


def code_for(
    p: AccessPolicy, who: Sender, now: float, entropy: bytes = bytes(ENTROPY)
) -> PairingOffer:
    made = offer(p, who, DIRECT, "A Name", entropy, now)
    assert isinstance(made, PairingOffer)
    return made


def test_a_stranger_is_let_in_by_the_code_they_were_shown_once() -> None:
    made = code_for(policy(), ANN, 100.0, bytes(range(ENTROPY)))
    members = evolve(NOBODY, made.fact, 100.0)
    assert isinstance(may_speak(policy(members), ANN, DIRECT), AccessDenied)
    done = confirm(members, made.code, [Role.RUN, Role.READ, Role.RUN], OPERATOR, 101.0)
    assert done == PairingConfirmed(sender=ANN, roles=(Role.READ, Role.RUN), by=OPERATOR)
    members = evolve(members, done, 101.0)
    assert may_speak(policy(members), ANN, DIRECT) == AccessGranted(
        frozenset({Role.READ, Role.RUN})
    )
    assert confirm(members, made.code, USER, OPERATOR, 102.0) == PairingFailed(by=OPERATOR)


@settings(deadline=None)
@given(entropy=st.binary(min_size=ENTROPY, max_size=ENTROPY))
@example(entropy=bytes(ENTROPY))
@example(entropy=b"\xff" * ENTROPY)
def test_a_code_is_eight_of_crockfords_letters_and_is_not_written_down(entropy: bytes) -> None:
    made = code_for(policy(), ANN, 0.0, entropy)
    assert len(made.code) == 8
    assert set(made.code) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    # As the standard says: five bits a letter, the first bits first.
    value = sum(
        "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(letter) << 5 * place
        for place, letter in enumerate(reversed(made.code))
    )
    assert value.to_bytes(5, "big") == entropy[:5]
    salt = entropy[5:].hex()
    digest = sha256(f"{salt}:{made.code}".encode()).hexdigest()
    assert made.fact == PairingOffered(
        sender=ANN, name="A Name", salt=salt, digest=digest, expires_at=CODE_S
    )


def test_the_same_code_is_kept_differently_under_another_salt() -> None:
    one = code_for(policy(), ANN, 0.0)
    other = code_for(policy(), ANN, 0.0, bytes(5) + b"\x01" * 16)
    assert one.code == other.code == "00000000"
    assert one.fact.digest != other.fact.digest


@pytest.mark.parametrize("length", [0, ENTROPY - 1, ENTROPY + 1])
def test_no_code_is_made_of_too_little_chance(length: int) -> None:
    with pytest.raises(ValueError, match="random bytes"):
        offer(policy(), ANN, DIRECT, "", bytes(length), 0.0)


@pytest.mark.parametrize("typed", ["01abcdez", "01AB-CDEZ", " o1ab cdez", "OLABCDEZ", "0iabcdez"])
def test_a_code_may_be_typed_as_people_do(typed: str) -> None:
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    bits = sum(letters.index(c) << 5 * n for n, c in enumerate(reversed("01ABCDEZ")))
    made = code_for(policy(), ANN, 0.0, bits.to_bytes(5, "big") + bytes(16))
    assert made.code == "01ABCDEZ"
    members = evolve(NOBODY, made.fact, 0.0)
    assert isinstance(confirm(members, typed, USER, OPERATOR, 1.0), PairingConfirmed)


@pytest.mark.parametrize("typed", ["", "0000000", "000000000", "0000000U", "0" * 10**5, "\ud800"])
def test_nothing_but_the_code_will_do(typed: str) -> None:
    members = evolve(NOBODY, code_for(policy(), ANN, 0.0).fact, 0.0)
    assert isinstance(confirm(members, "00000000", USER, OPERATOR, 1.0), PairingConfirmed)
    assert confirm(members, typed, USER, OPERATOR, 1.0) == PairingFailed(by=OPERATOR)


@pytest.mark.parametrize(
    ("now", "works"), [(999.9, False), (1000.0, True), (1599.9, True), (1600.0, False)]
)
def test_a_code_works_for_ten_minutes_and_not_for_a_clock_that_went_back(
    now: float, works: bool
) -> None:
    assert CODE_S == 600.0
    made = code_for(policy(), ANN, 1000.0)
    members = evolve(NOBODY, made.fact, 1000.0)
    done = confirm(members, made.code, USER, OPERATOR, now)
    assert isinstance(done, PairingConfirmed if works else PairingFailed)


def test_a_new_code_replaces_only_the_same_user_s_old_one() -> None:
    old = code_for(policy(), ANN, 0.0, b"\x01" * ENTROPY)
    hers = code_for(policy(), EVE, 0.0, b"\x03" * ENTROPY)
    members = evolve(evolve(NOBODY, old.fact, 0.0), hers.fact, 0.0)
    new = code_for(policy(members), ANN, 1.0, b"\x02" * ENTROPY)
    members = evolve(members, new.fact, 1.0)
    assert confirm(members, old.code, USER, OPERATOR, 2.0) == PairingFailed(by=OPERATOR)
    for made, who in ((new, ANN), (hers, EVE)):
        done = confirm(members, made.code, USER, OPERATOR, 2.0)
        assert done == PairingConfirmed(sender=who, roles=tuple(sorted(USER)), by=OPERATOR)


def test_a_strangers_name_is_shown_for_what_it_is() -> None:
    made = offer(policy(), ANN, DIRECT, "x\u202e\n" + "y" * 100, bytes(ENTROPY), 0.0)
    assert isinstance(made, PairingOffer)
    assert made.fact.name == "x\\u{202e}\\u{a}" + "y" * 61


@pytest.mark.parametrize(
    ("who", "chat_type", "allowed", "why"),
    [
        (EVE, ChatType.GROUP, policy(), RefusalCause.NO_PAIRING),
        (EVE, DIRECT, policy(pairing=False), RefusalCause.NO_PAIRING),
        (EVE, DIRECT, AccessPolicy({}, NOBODY), RefusalCause.UNKNOWN),
        (Sender("telegram", ""), DIRECT, policy(), RefusalCause.UNKNOWN),
        (ANN, DIRECT, policy(ann=USER), RefusalCause.KNOWN),
        (ANN, DIRECT, policy(ann=frozenset()), RefusalCause.KNOWN),
        (ANN, DIRECT, policy(paired(ann=USER)), RefusalCause.KNOWN),
    ],
)
def test_no_code_is_shown_where_it_could_not_help(
    who: Sender, chat_type: ChatType, allowed: AccessPolicy, why: RefusalCause
) -> None:
    verdict = offer(allowed, who, chat_type, "", bytes(ENTROPY), 0.0)
    assert isinstance(verdict, AccessDenied)
    assert verdict.cause is why
    said = may_speak(AccessPolicy({}, NOBODY), who, chat_type)
    assert isinstance(said, AccessDenied)
    assert verdict.reason == said.reason


def asked(*senders: Sender, at: float = 0.0) -> Members:
    members = NOBODY
    for sender in senders:
        members = evolve(members, code_for(policy(), sender, at).fact, at)
    return members


def test_a_user_gets_only_a_few_codes_an_hour() -> None:
    members = asked(*[ANN] * OFFERS_PER_USER)
    refused = offer(policy(members), ANN, DIRECT, "", bytes(ENTROPY), HOUR_S - 1)
    assert isinstance(refused, AccessDenied)
    assert refused.cause is RefusalCause.TOO_OFTEN
    code_for(policy(members), BOB, HOUR_S - 1)
    code_for(policy(members), ANN, HOUR_S)


def test_a_crowd_gets_no_more_than_its_platforms_share() -> None:
    crowd = [Sender("telegram", str(n)) for n in range(OFFERS_PER_PLATFORM)]
    members = asked(*crowd)
    both = AccessPolicy(
        {p: PlatformAccess({}, CHATS, True) for p in ("telegram", "discord")}, members
    )
    refused = offer(both, ANN, DIRECT, "", bytes(ENTROPY), 1.0)
    assert isinstance(refused, AccessDenied)
    assert refused.cause is RefusalCause.TOO_OFTEN
    code_for(both, Sender("discord", "ann"), 1.0)


def test_a_code_that_reached_its_stranger_is_not_replaced_while_it_is_worth_something() -> None:
    members = evolve(NOBODY, code_for(policy(), ANN, 0.0).fact, 0.0)

    def again(who: Sender, now: float, *, shown: bool = True, of: Members = members) -> object:
        return offer(policy(of), who, DIRECT, "", bytes(ENTROPY), now, shown=shown)

    assert again(ANN, 1.0) == again(ANN, CODE_S - WORTH_S) == StillGood(CODE_S)
    assert isinstance(again(ANN, CODE_S - WORTH_S + 1), PairingOffer)
    assert isinstance(again(ANN, 1.0, shown=False), PairingOffer), "it is lost: they need another"
    assert isinstance(again(ANN, -1.0), PairingOffer), "the clock went back: nobody could use it"
    assert isinstance(again(BOB, 1.0), PairingOffer), "another stranger"
    gone = evolve(members, UserRemoved(sender=ANN, by=OPERATOR), 1.0)
    assert isinstance(again(ANN, 1.0, of=gone), PairingOffer)
    for now in (2.0, 3.0):
        members = evolve(members, code_for(policy(members), ANN, now).fact, now)
    assert isinstance(again(ANN, 4.0, of=members), AccessDenied), "too many: not a word"


def test_old_offers_and_old_failures_are_forgotten() -> None:
    members = evolve(asked(ANN), PairingFailed(by=OPERATOR), 0.0)
    later = CODE_S + HOUR_S
    members = evolve(members, code_for(policy(members), BOB, later).fact, later)
    members = evolve(members, PairingFailed(by=OPERATOR), later)
    assert list(members.offers) == [BOB]
    assert members.asked == ((later, BOB),)
    assert members.failed == ((later, OPERATOR),)


def test_a_code_confirmed_in_its_last_moment_counts_though_it_is_written_down_later() -> None:
    made = code_for(policy(), ANN, 0.0)
    members = evolve(NOBODY, made.fact, 0.0)
    done = confirm(members, made.code, USER, OPERATOR, CODE_S - 0.001)
    members = evolve(members, code_for(policy(), BOB, CODE_S).fact, CODE_S + 1)
    assert isinstance(done, PairingConfirmed)
    assert evolve(members, done, CODE_S + 2).status(ANN) is MemberStatus.MEMBER


def test_too_many_wrong_codes_block_further_attempts_for_a_while() -> None:
    made = code_for(policy(), ANN, 1000.0)
    members = evolve(NOBODY, made.fact, 1000.0)
    for n in range(FAILURES):
        assert isinstance(confirm(members, made.code, USER, OPERATOR, 1000.0 + n), PairingConfirmed)
        members = evolve(members, PairingFailed(by=OPERATOR), 1000.0 + n)
    refused = confirm(members, made.code, USER, OPERATOR, 1100.0)
    assert refused == TooOften("10 wrong codes within an hour.", 1000.0 + HOUR_S)
    assert isinstance(
        confirm(members, made.code, USER, Owner("somebody else"), 1100.0), PairingConfirmed
    )
    assert isinstance(confirm(members, "wrong", USER, OPERATOR, refused.retry_at), PairingFailed)


def test_a_code_can_be_looked_up_as_often_as_one_likes_and_a_wrong_one_counts() -> None:
    made = code_for(policy(), ANN, 1000.0)
    members = evolve(NOBODY, made.fact, 1000.0)
    for _ in range(FAILURES + 1):
        assert look_up(members, made.code, OPERATOR, 1001.0) == made.fact
    assert look_up(members, "wrong", OPERATOR, 1001.0) == PairingFailed(by=OPERATOR)
    assert look_up(members, made.code, OPERATOR, 1000.0 + CODE_S) == PairingFailed(by=OPERATOR)


def test_a_new_member_is_welcomed_in_the_chat_of_the_request() -> None:
    made = offer(policy(), ANN, DIRECT, "Ann", bytes(ENTROPY), 0.0, "the chat")
    assert isinstance(made, PairingOffer)
    (told,) = welcome(made.fact, DeliveryId("d"))
    assert (told.address.platform, told.address.chat_type) == ("telegram", DIRECT)
    assert (told.address.chat, told.address.user, told.delivery_id) == ("the chat", "", "d")
    assert "/help" in told.text
    before = msgspec.json.decode(  # as it was written before it had a chat
        b'{"kind":"pairing.offered","sender":["telegram","ann"],"name":"","salt":"","digest":"",'
        b'"expires_at":1.0}',
        type=PairingOffered,
    )
    assert welcome(before, DeliveryId("d")) == ()


def test_the_operator_sees_who_is_let_in_by_what_and_who_waits() -> None:
    members = evolve(paired(ann=USER, bob=USER), code_for(policy(), EVE, 1000.0).fact, 1000.0)
    known = policy(members, ann=frozenset({Role.ADMIN}))
    assert people(known, 1001.0) == [
        Person(ANN, ALL, Source.CONFIGURATION),
        Person(BOB, USER, Source.PAIRING),
        Person(EVE, frozenset(), Source.OFFER, "A Name", 1000.0 + CODE_S),
    ]
    assert people(known, 1000.0 + CODE_S) == people(known, 1001.0)[:2], "her code has run out"
    gone = AccessPolicy({}, members)
    assert [p.roles for p in people(gone, 1001.0)] == [frozenset()] * 3, "nobody is served there"


def test_removing_a_listed_user_is_refused_with_a_hint() -> None:
    listed = remove(policy(ann=USER), ANN, OPERATOR)
    assert listed == NotPaired(f"telegram:ann {LISTED}")
    assert remove(policy(), ANN, OPERATOR) == NotPaired("telegram:ann is not paired.")
    assert remove(AccessPolicy({}, NOBODY), ANN, OPERATOR) == NotPaired(
        "telegram:ann is not paired."
    )
    gone = remove(AccessPolicy({}, paired(ann=USER)), ANN, OPERATOR)
    assert gone == UserRemoved(sender=ANN, by=OPERATOR)


def test_an_offer_can_be_withdrawn() -> None:
    made = code_for(policy(), ANN, 0.0)
    members = evolve(NOBODY, made.fact, 0.0)
    withdrawn = remove(policy(members), ANN, OPERATOR)
    assert isinstance(withdrawn, UserRemoved)
    members = evolve(members, withdrawn, 1.0)
    assert isinstance(confirm(members, made.code, USER, OPERATOR, 2.0), PairingFailed)
    assert members.status(ANN) is MemberStatus.STRANGER


OFFERED = PairingOffered(sender=ANN, name="Ann", salt="00", digest="ff", expires_at=1.0)
FACTS: dict[str, PairingOffered | PairingConfirmed | UserRemoved] = {
    "is shown a code": OFFERED,
    "is confirmed": PairingConfirmed(sender=ANN, roles=(Role.RUN,), by=OPERATOR),
    "is removed": UserRemoved(sender=ANN, by=OPERATOR),
}
KNOWN = {
    MemberStatus.STRANGER: paired(bob=USER),
    MemberStatus.OFFERED: Members(roles={BOB: USER}, offers={ANN: OFFERED}),
    MemberStatus.MEMBER: paired(ann=USER, bob=USER),
}
ALLOWED = {
    ("stranger", "is shown a code"): "offered",
    ("offered", "is shown a code"): "offered",
    ("offered", "is confirmed"): "member",
    ("offered", "is removed"): "stranger",
    ("member", "is removed"): "stranger",
}


@pytest.mark.parametrize("status", MemberStatus)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: MemberStatus, fact: str) -> None:
    before = KNOWN[status]
    assert before.status(ANN) is status
    assert not status.final
    if (status.value, fact) in ALLOWED:
        after = evolve(before, FACTS[fact], 0.0)
        assert after.status(ANN).value == ALLOWED[status.value, fact]
        assert after.roles[BOB] == USER, "others stay what they are"
    else:
        with pytest.raises(IllegalTransition, match=f"while telegram:ann is a {status}"):
            evolve(before, FACTS[fact], 0.0)


@pytest.mark.parametrize("fact", [*FACTS.values(), PairingFailed(by=OPERATOR)], ids=repr)
def test_access_facts_survive_encoding(fact: Event) -> None:
    assert msgspec.json.decode(msgspec.json.encode(fact), type=Event) == fact


class Gate(RuleBasedStateMachine):
    """Strangers who ask, an operator who types codes old and new, and the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[tuple[Event, float]] = []
        self.members = NOBODY
        self.now = 0.0
        self.shown: list[tuple[str, Sender, float]] = []
        self.used: set[str] = set()
        self.inside: set[Sender] = set()
        self.made = 0

    def record(self, fact: Event) -> None:
        self.members = evolve(self.members, fact, self.now)
        self.journal.append((fact, self.now))

    senders = st.sampled_from([ANN, BOB])

    @rule(who=senders)
    def somebody_asks(self, who: Sender) -> None:
        self.made += 1
        entropy = self.made.to_bytes(5, "big") + bytes(16)
        made = offer(policy(self.members), who, DIRECT, "", entropy, self.now)
        recent = [w for _, w, at in self.shown if w == who and at > self.now - HOUR_S]
        if who in self.inside or len(recent) >= OFFERS_PER_USER:
            assert isinstance(made, AccessDenied)
            return
        assert isinstance(made, PairingOffer), "a stranger always gets a code in the end"
        self.record(made.fact)
        self.shown.append((made.code, who, self.now))

    @precondition(lambda self: self.shown)
    @rule(data=st.data())
    def the_operator_types_a_code(self, data: st.DataObject) -> None:
        code, who, at = data.draw(st.sampled_from(self.shown))
        newest = [c for c, w, _ in self.shown if w == who][-1]
        wrong = [
            1 for f, t in self.journal if isinstance(f, PairingFailed) and t > self.now - HOUR_S
        ]
        done = confirm(self.members, code, USER, OPERATOR, self.now)
        if len(wrong) >= FAILURES:
            assert isinstance(done, TooOften)
            return
        assert not isinstance(done, TooOften)
        good = code == newest and code not in self.used and self.now < at + CODE_S
        assert isinstance(done, PairingConfirmed) is good
        if isinstance(done, PairingConfirmed):
            assert done.sender == who
            self.inside.add(who)
            self.used.add(code)
        self.record(done)

    @rule(who=senders)
    def the_operator_removes(self, who: Sender) -> None:
        gone = remove(policy(self.members), who, OPERATOR)
        if isinstance(gone, UserRemoved):
            self.used |= {code for code, w, _ in self.shown if w == who}
            self.inside.discard(who)
            self.record(gone)
        else:
            assert who not in self.inside

    @rule(seconds=st.sampled_from([1.0, 599.0, HOUR_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def only_those_the_operator_let_in_are_heard(self) -> None:
        for who in (ANN, BOB, EVE):
            verdict = may_speak(policy(self.members), who, DIRECT)
            assert isinstance(verdict, AccessGranted) is (who in self.inside)

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        assert len(self.members.asked) <= OFFERS_PER_USER * 2
        assert len(self.members.failed) <= FAILURES

    @invariant()
    def the_journal_tells_the_same_story(self) -> None:
        again = NOBODY
        for fact, at in self.journal:
            again = evolve(again, fact, at)
        assert again == self.members


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=100, phases=set(Phase) - {Phase.explain}, deadline=None)
