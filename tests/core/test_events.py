"""Facts have one name each, can be written down and read back, and say whom they speak of."""

from typing import get_args

import msgspec
import pytest
from msgspec.structs import fields, replace

from holdfast.core import intents
from holdfast.core.address import Address, BusyModeChosen, ChatType, Key, KeyBound, Sender, Why
from holdfast.core.approval.approval import (
    ApprovalRequested,
    Choice,
    Grant,
    Level,
    PostureSeen,
    Role,
    Standing,
)
from holdfast.core.approval.rules import HostRule
from holdfast.core.chat.access import PairingConfirmed, PairingFailed, PairingOffered, UserRemoved
from holdfast.core.chat.chats import HomeChosen, RestartAsked, Returned, UpdateTaken
from holdfast.core.chat.delivery import (
    DeliveryQueued,
    SendAbandoned,
    SendAccepted,
    SendDeferred,
    SendDoubted,
    SendHeld,
    SendReleased,
    SendStarted,
)
from holdfast.core.events import (
    ACTED_UPON,
    TERMINAL,
    Delta,
    Event,
    MessageDelta,
    Record,
    ToolProgress,
    run_of,
)
from holdfast.core.inbox import Idempotency, InputAdmitted, Mode, UpdateRef
from holdfast.core.messages import Assistant, Proposal, System, ToolResult, User
from holdfast.core.run.call import CallAnswered, CallParked, CallSettled, Kept, Outcome
from holdfast.core.run.files import ChangeKind, FileChange, FileChanged, FileChanging
from holdfast.core.run.process import ProcessEnd, ProcessEnded, ProcessMatched, ProcessStarted
from holdfast.core.run.run import ModelAnswered, Origin, Parent, RunCompleted, RunQueued, RunStarted
from holdfast.core.session.instructions import InstructionFile, InstructionsRead
from holdfast.core.session.rewound import (
    FileResult,
    FileStep,
    RewindPlanned,
    RewindScope,
    Rewound,
    SeedPoint,
)
from holdfast.core.session.session import (
    ModelChosen,
    SessionOpened,
    SessionReopened,
    SessionSeeded,
    SessionTitled,
    Undone,
)
from holdfast.core.types import (
    OPERATOR,
    CallId,
    DeliveryId,
    Fact,
    InputId,
    Owner,
    ProcessId,
    RequestId,
    RewindId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
    kind,
)
from holdfast.errors import Refused

KINDS: tuple[type[Fact], ...] = (*get_args(Event), *get_args(Delta))
RUN, INPUT, CALL = RunId("run"), InputId("input"), CallId("call")
PROCESS = ProcessId("proc")
OUT = DeliveryId("d")
CHAT = Address(platform="tg", chat_type=ChatType.GROUP, chat="7", thread="2", user="9")
CAME = UpdateRef(channel="tg", external_id="41", cursor="41", message_id="5")


def test_no_two_facts_go_by_the_same_name() -> None:
    names = [kind(k) for k in KINDS]
    assert len(set(names)) == len(names)
    assert kind(RunStarted(run_id=RUN)) == kind(RunStarted) == "run.started"


@pytest.mark.parametrize(
    "fact",
    [
        InputAdmitted(
            input_id=INPUT,
            run_id=RUN,
            text="hi",
            history=(User("a"), Assistant("b"), ToolResult(CALL, "c"), System("d")),
            idempotency=Idempotency(route="runs", key="k", fingerprint="f"),
            metadata={"a": "b"},
            came=CAME,
            hosts=("a.example",),
        ),
        ModelAnswered(
            run_id=RUN, turn=1, text="", calls=(Proposal(CALL, "t", "{"),), usage=Usage(1, 2)
        ),
        CallSettled(
            run_id=RUN,
            call_id=CALL,
            tool="t",
            outcome=Outcome.UNKNOWN,
            text="?",
            kept=(Kept(path="a", blob="b"),),
        ),
        ApprovalRequested(
            run_id=RUN,
            call_id=CALL,
            request_id=RequestId("q"),
            command="c",
            description="d",
            execution="e",
            choices=(Choice.ONCE, Choice.DENY),
            expires_at=1.0,
        ),
        DeliveryQueued(
            delivery_id=OUT,
            address=CHAT,
            text="hi",
            of_run=RUN,
            reply_to="5",
            edits=DeliveryId("c"),
            buttons=(("Yes", "once q"),),
            hosts=("a.example",),
            perishable=True,
        ),
        SendStarted(delivery_id=OUT),
        SendAccepted(delivery_id=OUT, external_id="42"),
        SendDeferred(delivery_id=OUT, reason="busy", due_at=1.5),
        SendDoubted(delivery_id=OUT, reason="cut"),
        SendHeld(delivery_id=OUT, reason="ambiguous"),
        SendReleased(delivery_id=OUT, at=2.5),
        SendAbandoned(delivery_id=OUT, reason="blocked"),
        UpdateTaken(came=CAME),
        HomeChosen(address=CHAT, by=OPERATOR),
        RestartAsked(address=CHAT, reply_to="5", by=OPERATOR),
        Returned(),
        KeyBound(key=Key("k"), session_id=SessionId("s"), reason=Why.FIRST),
        BusyModeChosen(key=Key("k"), mode=Mode.STEER),
        PairingOffered(sender=CHAT.sender, name="n", salt="s", digest="d", expires_at=1.0),
        PairingConfirmed(sender=Sender("tg", "9"), roles=(Role.RUN,), by=OPERATOR),
        PairingFailed(by=OPERATOR),
        UserRemoved(sender=CHAT.sender, by=OPERATOR),
        SessionOpened(session_id="s", workspace="/w", platform="cli"),
        SessionReopened(by=OPERATOR),
        ModelChosen(model="p/m", by=OPERATOR),
        Undone(by=OPERATOR, came=CAME),
        SessionTitled(title="a name", by=OPERATOR),
        SessionSeeded(
            messages=(
                User("a"),
                Assistant("b", (Proposal(CALL, "t", "{"),)),
                ToolResult(CALL, "c"),
            ),
            source="fork of s",
            began_at=1.0,
            said_at=2.0,
        ),
        RunQueued(
            run_id=RUN,
            input_id=INPUT,
            origin=Origin(
                platform="tg",
                late=True,
                address=CHAT,
                reply_to="5",
                works_for=CHAT.sender.owner,
                progress=True,
            ),
            parent=Parent(
                session_id=SessionId("p"),
                run_id=RunId("parent"),
                call_id=CALL,
                background=True,
                depth=2,
            ),
        ),
        CallParked(
            run_id=RUN,
            call_id=CALL,
            reason="asks",
            question="Which?",
            options=("a", "b"),
            child=RunId("child"),
        ),
        CallAnswered(run_id=RUN, call_id=CALL, came=CAME),
        RunStarted(run_id=RUN, sandbox="L2"),
        InstructionsRead(
            run_id=RUN,
            files=(
                InstructionFile(path="AGENTS.md", sha256="ab", size=2, text="hi", own=True),
                InstructionFile(path="CLAUDE.md", problem="a link"),
            ),
        ),
        Grant(
            permission=HostRule(name="a.example"),
            session=SessionKey(OPERATOR, SessionId("s")),
            user=OPERATOR,
            expires_at=1.0,
        ),
        Standing(permission=HostRule(name="a.example"), by=OPERATOR, revoked=True),
        PostureSeen(level=Level.L2),
        ProcessStarted(
            process_id=PROCESS,
            started_by=RUN,
            call_id=CALL,
            command="make",
            notify=True,
            watch=("error",),
            origin=Origin(platform="cli", answerable=False),
        ),
        ProcessMatched(process_id=PROCESS, offset=1, lines="error"),
        ProcessEnded(process_id=PROCESS, cause=ProcessEnd.EXITED, exit_code=0, tail="done"),
    ],
    ids=kind,
)
def test_facts_survive_encoding(fact: Fact) -> None:
    assert msgspec.json.decode(msgspec.json.encode(fact), type=Event) == fact


def test_facts_that_are_acted_upon_are_synced() -> None:
    assert set(KINDS) >= ACTED_UPON >= set(TERMINAL)
    assert {kind(t) for t in TERMINAL} == {"run.completed", "run.failed", "run.cancelled"}


def test_run_of_returns_the_run_of_a_fact() -> None:
    delta = MessageDelta(run_id=RUN, turn=1, text="he")
    assert run_of(Record(1, 1, 0.0, delta).fact) == RUN
    assert run_of(SessionOpened(session_id="s", workspace="", platform="cli")) is None
    assert run_of(ToolProgress(run_id=RUN, turn=1, call_id=CALL, text="10 %")) == RUN


@pytest.mark.parametrize(
    "fact",
    [
        ProcessStarted(process_id=PROCESS, started_by=RUN, call_id=CALL, command="make"),
        ProcessMatched(process_id=PROCESS, offset=1, lines="error"),
        ProcessEnded(process_id=PROCESS, cause=ProcessEnd.LOST),
    ],
    ids=kind,
)
def test_a_process_is_its_session_s_and_not_bound_to_an_open_run(fact: Fact) -> None:
    assert run_of(fact) is None


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (
            b'{"kind":"run.queued","run_id":"run","input_id":"input"}',
            RunQueued(run_id=RUN, input_id=INPUT),
        ),
        (b'{"kind":"run.started","run_id":"run"}', RunStarted(run_id=RUN)),
        (b'{"kind":"instructions.read","run_id":"run"}', InstructionsRead(run_id=RUN)),
        (
            b'{"kind":"call.parked","run_id":"run","call_id":"call","reason":"waits"}',
            CallParked(run_id=RUN, call_id=CALL, reason="waits"),
        ),
        (
            b'{"kind":"file.changing","run_id":"run","call_id":"call","change":{"path":"a",'
            b'"kind":"created","added":1,"removed":0,"before":"","after":"1e","mode_before":0,'
            b'"mode_after":33188,"binary":false}}',
            FileChanging(
                run_id=RUN,
                call_id=CALL,
                change=FileChange(
                    "a", ChangeKind.CREATED, added=1, after="1e", mode_after=0o100644
                ),
            ),
        ),
        (
            b'{"kind":"file.changed","run_id":"run","call_id":"call","path":"a/b","change":"patched",'
            b'"added":2,"removed":1,"before":"0f","after":"1e","mode_before":33188,"mode_after":33261}',
            FileChanged(
                run_id=RUN,
                call_id=CALL,
                path="a/b",
                kind=ChangeKind.PATCHED,
                added=2,
                removed=1,
                before="0f",
                after="1e",
                mode_before=0o100644,
                mode_after=0o100755,
            ),
        ),
        (
            b'{"kind":"session.rewinding","rewind_id":"rew","point":"run","by":"operator",'
            b'"runs":["run"],"files":[{"path":"a","was_blob":"0f","new_blob":"1e",'
            b'"was_mode":33188,"new_mode":33261}]}',
            RewindPlanned(
                rewind_id=RewindId("rew"),
                point=RUN,
                by=OPERATOR,
                runs=(RUN,),
                files=(
                    FileStep(
                        path="a",
                        was_blob="0f",
                        new_blob="1e",
                        was_mode=0o100644,
                        new_mode=0o100755,
                    ),
                ),
            ),
        ),
        (
            b'{"kind":"session.rewound","rewind_id":"rew","point":"run","by":"operator",'
            b'"what":"files","files":[{"path":"a","was_blob":"0f","result":"deleted"}],"redo":true}',
            Rewound(
                rewind_id=RewindId("rew"),
                point=RUN,
                by=OPERATOR,
                what=RewindScope.FILES,
                files=(FileStep(path="a", was_blob="0f", result=FileResult.DELETED),),
                redo=True,
            ),
        ),
        (
            b'{"kind":"session.seeded","messages":[],"source":"fork of s",'
            b'"points":[{"run_id":"run","position":2,"at":1.5}]}',
            SessionSeeded(
                messages=(),
                source="fork of s",
                points=(SeedPoint(run_id=RUN, position=2, at=1.5),),
            ),
        ),
    ],
)
def test_facts_from_before_runs_had_an_origin_and_a_sandbox_are_still_read(
    written: bytes, read: Fact
) -> None:
    assert msgspec.json.decode(written, type=Event) == read
    assert msgspec.json.encode(read) == written
    assert Origin() == Origin(platform="", answerable=True, late=False)


def test_facts_are_never_changed() -> None:
    fact = RunCompleted(run_id=RUN, output="yes", usage=Usage())
    with pytest.raises(AttributeError):
        fact.output = "no"


def test_usage_adds_up() -> None:
    assert Usage(1, 2) + Usage(10, 20) == Usage(11, 22)
    assert Usage(11, 22).total_tokens == 33


def test_a_principal_names_its_interface_whose_capabilities_have_no_defaults() -> None:
    door = intents.DoorCapabilities("cli", answerable=True, late=True)
    assert intents.Principal(OPERATOR, door, frozenset()).platform == "cli"
    assert all(f.required for f in fields(intents.DoorCapabilities))


def test_in_a_shared_chat_the_user_is_the_speaker() -> None:
    door = intents.DoorCapabilities("tg", answerable=True, late=True)
    group = Owner("tg:group:7")
    assert intents.Principal(group, door, frozenset()).who == group
    assert intents.Principal(group, door, frozenset(), CHAT.sender.owner).who == "tg:9"


def test_only_the_operator_at_a_terminal_sees_all_owners() -> None:
    here = intents.DoorCapabilities("cli", answerable=True, late=True)
    away = intents.DoorCapabilities("api_server", answerable=True, late=False)
    admin, guest = frozenset({Role.ADMIN}), Owner("tg:9")
    assert intents.Principal(OPERATOR, here, admin).scope is None
    assert intents.Principal(OPERATOR, here, admin).sees(guest)
    for less in (
        intents.Principal(OPERATOR, here, frozenset(Role) - admin),
        intents.Principal(OPERATOR, away, admin),
        intents.Principal(Owner("tg:1"), here, admin),
    ):
        assert less.scope == less.owner
        assert less.sees(less.owner)
        assert not less.sees(guest)


def test_the_operator_acts_in_other_owners_sessions_only_at_a_terminal() -> None:
    here = intents.DoorCapabilities("cli", answerable=True, late=True)
    guest, admin = Owner("tg:9"), frozenset(Role)
    operator = intents.Principal(OPERATOR, here, admin)
    there = operator.among(guest)
    assert (there.owner, there.who, there.scope, there.door) == (guest, OPERATOR, guest, here)
    assert there.visits
    assert there.among(guest) == there
    assert there.among(OPERATOR) == operator.among(OPERATOR) == operator
    for other in (
        there,
        intents.Principal(OPERATOR, replace(here, platform="api_server"), admin),
        intents.Principal(Owner("tg:group:7"), here, admin, guest),
    ):
        with pytest.raises(Refused, match="Only the operator"):
            other.among(Owner("tg:1"))
    assert not operator.visits
    assert not intents.Principal(Owner("tg:group:7"), here, admin, guest).visits


def test_every_intent_has_a_principal_and_all_but_submit_name_a_run() -> None:
    for intent in get_args(intents.Intent):
        names = {f.name for f in fields(intent)}
        assert "by" in names
        assert ("run_id" in names) is (intent is not intents.Submit)
