"""No two conversations share a key, and a key leads to one session at a time."""

import re

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.core.address import (
    DAY_S,
    HOUR_S,
    Address,
    Bound,
    BusyModeChosen,
    Chats,
    ChatSessions,
    ChatType,
    Condition,
    Daily,
    Event,
    Groups,
    Idle,
    Key,
    KeyBound,
    Never,
    NoSuchSession,
    Reset,
    Sender,
    Why,
    begin,
    busy_mode,
    conversation,
    current,
    due,
    evolve,
    owner,
    read,
    resume,
    route,
)
from holdfast.core.inbox import Mode
from holdfast.core.types import OPERATOR, Owner, SessionId
from holdfast.errors import IllegalTransition

LEGAL = re.compile(r"[A-Za-z0-9_.:@+=~-]{1,255}")  # what the HTTP door takes for a session id


def at(
    chat: str, thread: str = "", user: str = "", chat_type: ChatType = ChatType.GROUP
) -> Address:
    return Address(platform="telegram", chat_type=chat_type, chat=chat, thread=thread, user=user)


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (at("42", chat_type=ChatType.DIRECT), "agent:main:telegram:dm:42"),
        (at("42", "7", chat_type=ChatType.DIRECT), "agent:main:telegram:dm:42:7"),
        (at("-100"), "agent:main:telegram:group:-100"),
        (at("-100", "7"), "agent:main:telegram:group:-100:7"),
        (at("-100", "7", "5"), "agent:main:telegram:group:-100:7:5"),
        (at("-100", user="7"), "agent:main:telegram:group:-100::7"),
        (at("!room:a.example"), "agent:main:telegram:group:~21room~3Aa.example"),
        (at("a~b", chat_type=ChatType.CHANNEL), "agent:main:telegram:channel:a~7Eb"),
        (at("ü"), "agent:main:telegram:group:~C3~BC"),
    ],
)
def test_a_key_is_readable_and_can_be_parsed(address: Address, key: str) -> None:
    assert address.key == key
    assert read(key) == address


def test_an_id_too_long_for_its_place_is_hashed_and_cannot_be_read_back() -> None:
    longest, longer = at("x" * 48), at("x" * 49)
    assert read(longest.key) == longest
    assert re.fullmatch("agent:main:telegram:group:~~[0-9a-f]{40}", longer.key)
    assert read(longer.key) is None
    assert longer.key != at("x" * 50).key
    assert at(longer.key.rpartition(":")[2]).key != longer.key, "nobody can name a hash"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent:main",
        "agent:main:telegram:group",
        "agent:main:telegram:group:1:2:3:4",
        "agent:other:telegram:group:1",
        "my agent:main:telegram:group:1",
        "agent:main:telegram:party:1",
        "agent:main:telegram:group:1:",
        "agent:main:telegram:group:1:2:",
        "agent:main:telegram:group:~3a",
        "agent:main:telegram:group:~41",
        "agent:main:telegram:group:~FF",
        "agent:main:telegram:group:~",
        "agent:main:telegram:group:ü",
        "agent:main:telegram:group:\ud800",
        "agent:main:telegram:group:1~~2",
    ],
)
def test_an_invalid_key_names_no_address(text: str) -> None:
    assert read(text) is None


IDS = st.one_of(
    st.sampled_from(["", "1", "12", "1:2", "~", "~~", "~31", "~~2", "1~~2", ":", "dm", "\ud800"]),
    st.text(st.characters(), max_size=60),
    st.text("ab:~%", max_size=200),
)
ADDRESSES = st.builds(
    Address,
    platform=IDS,
    chat_type=st.sampled_from(ChatType),
    chat=IDS,
    thread=IDS,
    user=IDS,
)


@settings(deadline=None)
@given(address=ADDRESSES)
@example(address=at("😀" * 100, "😀" * 100, "😀" * 100))
def test_every_key_is_a_legal_session_id_and_reads_back_or_not_at_all(address: Address) -> None:
    assert LEGAL.fullmatch(address.key)
    assert read(address.key) == (None if "~~" in address.key else address)


@settings(deadline=None)
@given(one=ADDRESSES, other=ADDRESSES, numbers=st.tuples(st.integers(0, 3), st.integers(0, 3)))
@example(one=at("1", "2"), other=at("1", user="2"), numbers=(0, 0))
@example(one=at("1:2"), other=at("1", "2"), numbers=(1, 1))
@example(one=at("1"), other=at("1~~2"), numbers=(1, 0))
@example(one=at(""), other=at("~~2"), numbers=(1, 0))
def test_no_two_addresses_share_a_key_nor_a_session_of_any_number(
    one: Address, other: Address, numbers: tuple[int, int]
) -> None:
    names = [sessions(address.key, n)[-1] for address, n in zip((one, other), numbers, strict=True)]
    assert all(map(LEGAL.fullmatch, names))
    assert (names[0] == names[1]) is (one == other and numbers[0] == numbers[1])
    assert (one.key == other.key) is (one == other)


def sessions(key: Key, resets: int) -> tuple[SessionId, ...]:
    chats: Chats = {}
    for _ in range(resets + 1):
        chats = evolve(chats, begin(chats, key, Why.NEW), 0.0)
    return chats[key].sessions


@settings(deadline=None)
@given(one=ADDRESSES, other=ADDRESSES, groups=st.sampled_from(Groups))
def test_owners_of_different_chats_are_different(
    one: Address, other: Address, groups: Groups
) -> None:
    assert owner(one, groups) != OPERATOR
    assert (one.sender.owner == other.sender.owner) is (one.sender == other.sender)
    if conversation(one, groups).key == conversation(other, groups).key and (
        one.chat_type is not ChatType.DIRECT
    ):
        assert owner(one, groups) == owner(other, groups)


@pytest.mark.parametrize(
    ("chat_type", "groups", "kept_for", "whose"),
    [
        (ChatType.DIRECT, Groups.PER_USER, "dm:1:2", "telegram:3"),
        (ChatType.DIRECT, Groups.SHARED, "dm:1:2", "telegram:3"),
        (ChatType.GROUP, Groups.PER_USER, "group:1:2:3", "telegram:3"),
        (ChatType.GROUP, Groups.SHARED, "group:1:2", "telegram:group:1"),
        (ChatType.CHANNEL, Groups.PER_USER, "channel:1:2", "telegram:channel:1"),
        (ChatType.CHANNEL, Groups.SHARED, "channel:1:2", "telegram:channel:1"),
    ],
)
def test_in_a_group_each_user_has_a_session_or_all_have_one(
    chat_type: ChatType, groups: Groups, kept_for: str, whose: str
) -> None:
    said = at("1", "2", "3", chat_type)
    assert conversation(said, groups).key == f"agent:main:telegram:{kept_for}"
    assert owner(said, groups) == whose


def test_a_place_is_the_same_for_all_who_speak_there() -> None:
    assert at("1", "2", "3").place == at("1", "2", "4").place == at("1", "2")
    assert at("1", "2", "3").place != at("1", "5", "3").place
    assert at("1", user="3").sender == Sender("telegram", "3")
    assert Sender("a:b", "c").owner != Sender("a", "b:c").owner
    assert Sender("telegram", "3").owner == Owner("telegram:3")


@pytest.mark.parametrize(
    "fact",
    [
        KeyBound(key=at("1").key, session_id=SessionId("s"), reason=Why.SUSPENDED),
        BusyModeChosen(key=at("1").key, mode=Mode.STEER),
        at("1", "2", "3"),
        at("1"),
    ],
    ids=repr,
)
def test_addresses_survive_encoding(fact: Event | Address) -> None:
    wanted = Address if isinstance(fact, Address) else Event
    assert msgspec.json.decode(msgspec.json.encode(fact), type=wanted) == fact


NOON = 10 * DAY_S + 12 * HOUR_S  # by UTC


@pytest.mark.parametrize(
    ("policy", "silent_h", "reason"),
    [
        (Never(), 1e6, None),
        (Idle(90), 1.49, None),
        (Idle(90), 1.5, Why.IDLE),
        (Idle(90), -5, None),
        (Daily(4, 0), 7.99, None),
        (Daily(4, 0), 8.01, Why.DAILY),
        (Daily(4, 0), -5, None),
        (Daily(4, 2 * HOUR_S), 9.99, None),
        (Daily(4, 2 * HOUR_S), 10.01, Why.DAILY),
        (Daily(13, 0), 22.99, None),
        (Daily(13, 0), 23.01, Why.DAILY),
        (Daily(12, 0), 0, None),
        (Daily(12, 0), 0.01, Why.DAILY),
        (Daily(0, -5.5 * HOUR_S), 6.49, None),
        (Daily(0, -5.5 * HOUR_S), 6.51, Why.DAILY),
    ],
)
def test_a_new_session_starts_when_the_policy_requires_it(
    policy: Reset, silent_h: float, reason: Why | None
) -> None:
    assert due(policy, NOON - silent_h * HOUR_S, NOON) is reason


@settings(deadline=None)
@given(
    hour=st.integers(0, 23),
    offset_h=st.integers(-12, 14),
    last=st.integers(0, 10**6),
    silence=st.integers(0, 10**6),
)
def test_a_daily_reset_comes_once_a_day_at_its_hour(
    hour: int, offset_h: int, last: int, silence: int
) -> None:
    last_s, now = 1e9 + last, 1e9 + last + silence
    local = [int(t + offset_h * HOUR_S) for t in (last_s, now)]
    hours = range(local[0] // 3600 + 1, local[1] // 3600 + 1)  # that struck since
    struck = any(h % 24 == hour for h in hours)
    assert due(Daily(hour, offset_h * HOUR_S), last_s, now) is (Why.DAILY if struck else None)


KEY, OTHER = at("1").key, at("2").key
QUIET = Condition(suspended=False, unfinished=False, last_input_at=0.0)
LONG_AGO = 1e6


def after(*facts: Event) -> Chats:
    chats: Chats = {}
    for fact in facts:
        chats = evolve(chats, fact, 1.0)
    return chats


FIRST = begin({}, KEY, Why.FIRST)
SECOND = begin(after(FIRST), KEY, Why.NEW)


def test_the_first_session_bears_the_name_of_its_key_and_the_next_a_number() -> None:
    assert route({}, KEY, None, Idle(1), LONG_AGO) == FIRST
    assert FIRST.session_id == SessionId(KEY)
    assert SECOND.session_id == f"{KEY}~~2"
    assert current({}, KEY) is None
    assert current(after(FIRST), KEY) == SessionId(KEY)
    assert current(after(FIRST, SECOND), KEY) == SECOND.session_id
    assert current(after(FIRST, SECOND), OTHER) is None
    assert after(FIRST)[KEY] == ChatSessions((Bound(SessionId(KEY), Why.FIRST, 1.0),))


def test_a_session_that_was_bound_and_never_opened_gets_the_input() -> None:
    assert route(after(FIRST), KEY, None, Idle(1), LONG_AGO) is None


@pytest.mark.parametrize(
    ("condition", "policy", "reason"),
    [
        (QUIET, Never(), None),
        (QUIET, Idle(1), Why.IDLE),
        (QUIET, Daily(0, 0), Why.DAILY),
        (Condition(suspended=False, unfinished=True, last_input_at=0.0), Idle(1), None),
        (Condition(suspended=False, unfinished=True, last_input_at=0.0), Daily(0, 0), None),
        (Condition(suspended=True, unfinished=False, last_input_at=0.0), Never(), Why.SUSPENDED),
        (Condition(suspended=True, unfinished=False, last_input_at=0.0), Idle(1), Why.SUSPENDED),
        (Condition(suspended=True, unfinished=True, last_input_at=0.0), Never(), Why.SUSPENDED),
    ],
)
def test_a_suspended_session_is_left_behind_and_unfinished_work_is_not(
    condition: Condition, policy: Reset, reason: Why | None
) -> None:
    bound = route(after(FIRST), KEY, condition, policy, LONG_AGO)
    if reason is None:
        assert bound is None
    else:
        assert bound == KeyBound(key=KEY, session_id=SECOND.session_id, reason=reason)
        assert reason.automatic


def test_only_changes_without_a_request_are_automatic() -> None:
    assert {w for w in Why if not w.automatic} == {Why.FIRST, Why.NEW, Why.RESUMED}


def test_an_old_session_comes_back_and_the_one_it_displaced_can_too() -> None:
    chats = after(FIRST, SECOND)
    back = resume(chats, KEY, None)
    assert back == KeyBound(key=KEY, session_id=FIRST.session_id, reason=Why.RESUMED)
    chats = evolve(chats, back, 2.0)
    assert current(chats, KEY) == FIRST.session_id
    assert chats[KEY].sessions == (FIRST.session_id, SECOND.session_id)
    third = begin(chats, KEY, Why.NEW)
    assert third.session_id == f"{KEY}~~3"
    last = resume(after(FIRST, SECOND, third), KEY, None)
    assert isinstance(last, KeyBound)
    assert last.session_id == SECOND.session_id, "the one before, not the oldest"
    again = resume(chats, KEY, SECOND.session_id)
    assert isinstance(again, KeyBound)
    assert current(evolve(chats, again, 3.0), KEY) == SECOND.session_id


@pytest.mark.parametrize("wanted", [None, KEY, OTHER, "nowhere", ""])
def test_a_session_elsewhere_and_a_missing_one_are_refused_with_the_same_text(
    wanted: str | None,
) -> None:
    chats = after(FIRST, begin({}, OTHER, Why.FIRST))
    refused = resume(chats, KEY, None if wanted is None else SessionId(wanted))
    assert refused == NoSuchSession("There is no such earlier session in this chat.")


@pytest.mark.parametrize(
    ("session_id", "reason"),
    [(FIRST.session_id, Why.NEW), (SessionId("never seen"), Why.RESUMED)],
)
def test_a_fresh_session_was_never_used_and_a_resumed_one_was(
    session_id: SessionId, reason: Why
) -> None:
    with pytest.raises(IllegalTransition, match=f"KeyBound .{reason}. of {KEY}"):
        evolve(after(FIRST), KeyBound(key=KEY, session_id=session_id, reason=reason), 2.0)


def test_a_message_interrupts_unless_the_chat_or_the_configuration_says_otherwise() -> None:
    assert busy_mode({}, KEY) is Mode.INTERRUPT
    assert busy_mode(after(FIRST), KEY, Mode.QUEUE) is Mode.QUEUE
    chosen = after(BusyModeChosen(key=KEY, mode=Mode.STEER), FIRST, SECOND)
    assert busy_mode(chosen, KEY, Mode.QUEUE) is Mode.STEER
    assert busy_mode(chosen, OTHER) is Mode.INTERRUPT
    assert current(after(BusyModeChosen(key=KEY, mode=Mode.STEER)), KEY) is None


class Months(RuleBasedStateMachine):
    """Two chats through messages, silence, suspensions, /new, /resume and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.journal: list[tuple[Event, float]] = []
        self.chats: Chats = {}
        self.now = 0.0
        self.words: dict[SessionId, tuple[Key, float]] = {}  # who used a session, when last
        self.suspended: set[SessionId] = set()

    def record(self, fact: Event) -> None:
        self.chats = evolve(self.chats, fact, self.now)
        self.journal.append((fact, self.now))

    keys = st.sampled_from([KEY, OTHER])

    @rule(key=keys, policy=st.sampled_from([Never(), Idle(60), Daily(4, 0)]), open_=st.booleans())
    def somebody_writes(self, key: Key, policy: Reset, open_: bool) -> None:
        before = current(self.chats, key)
        condition = before and self.condition(before, open_)
        bound = route(self.chats, key, condition or None, policy, self.now)
        if bound is not None:
            assert bound.session_id not in self.words, "a fresh session is fresh"
            self.record(bound)
        session_id = current(self.chats, key)
        assert session_id is not None
        assert session_id not in self.suspended
        if open_ and before not in self.suspended and before is not None:
            assert session_id == before, "unfinished work keeps its session"
        self.words[session_id] = (key, self.now)

    def condition(self, session_id: SessionId, open_: bool) -> Condition | None:
        used = self.words.get(session_id)
        suspended = session_id in self.suspended
        return used and Condition(suspended, open_, used[1])

    @rule(key=keys)
    def somebody_stops(self, key: Key) -> None:
        if (session_id := current(self.chats, key)) in self.words:
            assert session_id is not None
            self.suspended.add(session_id)

    @rule(key=keys)
    def somebody_wants_a_new_one(self, key: Key) -> None:
        self.record(begin(self.chats, key, Why.NEW))
        assert current(self.chats, key) not in self.words

    @rule(key=keys, data=st.data())
    def somebody_wants_an_old_one(self, key: Key, data: st.DataObject) -> None:
        wanted = data.draw(st.sampled_from([None, *sorted(self.words)]))
        before = current(self.chats, key)
        found = resume(self.chats, key, wanted)
        mine = {s for s, (k, _) in self.words.items() if k == key}
        if isinstance(found, NoSuchSession):
            assert wanted is None or wanted == before or wanted not in mine
            return
        self.record(found)
        assert wanted in (None, found.session_id)
        assert found.session_id != before
        self.suspended.discard(found.session_id)

    @rule(hours=st.sampled_from([0.5, 1.0, 20.0]))
    def time_passes(self, hours: float) -> None:
        self.now += hours * HOUR_S

    @invariant()
    def no_session_is_behind_two_keys(self) -> None:
        seen = [s for chat in self.chats.values() for s in chat.sessions]
        assert len(set(seen)) == len(seen)

    @invariant()
    def every_session_somebody_used_is_current_or_can_be_had_back(self) -> None:
        for session_id, (key, _) in self.words.items():
            if current(self.chats, key) != session_id:
                back = resume(self.chats, key, session_id)
                assert isinstance(back, KeyBound)
                assert back.session_id == session_id

    @invariant()
    def the_journal_tells_the_same_story(self) -> None:
        again: Chats = {}
        for fact, when in self.journal:
            again = evolve(again, fact, when)
        assert again == self.chats


TestMonths = Months.TestCase
TestMonths.settings = settings(max_examples=100, phases=set(Phase) - {Phase.explain}, deadline=None)
