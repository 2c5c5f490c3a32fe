"""One session in a chat and at the terminal: only the operator can continue it."""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from holdfast.api.schema.runs import RunRequest
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.frames import Frame
from holdfast.cli.client.refusals import NotFound
from holdfast.cli.exits import Code, Exit
from holdfast.commands.approvals import NOTHING_WAITS
from holdfast.commands.status import NO_ACTIVE_RUN
from holdfast.core.inbox import Mode
from tests.behaviour.chats import GUEST, OWNER, Bot, bot
from tests.behaviour.hands import command
from tests.behaviour.terminals import configured, ignored
from tests.cli import Place
from tests.fakes import forks
from tests.fakes.emulator import screen
from tests.fakes.gateway import ROOT
from tests.fakes.model_server import ModelServer
from tests.fakes.telegram import Chat

pytestmark = pytest.mark.anyio

THEIRS = f"telegram:{GUEST}"
HERE = f"agent:main:telegram:dm:{GUEST}"


@pytest.fixture
async def both(tmp_path: Path, model: ModelServer) -> AsyncIterator[Bot]:
    async with bot(tmp_path, model.base_url) as it:
        yield it


@pytest.fixture
async def client(both: Bot) -> AsyncIterator[Client]:
    """The terminal's, for the session of the guest's chat."""
    async with connect(configured(both.gateway.home), ignored) as it:
        yield it.for_owner(THEIRS)


def guests(it: Bot) -> Chat:
    return it.telegram.private(GUEST)


async def speak(it: Bot, text: str, answer: str) -> None:
    """Words of the guest in the chat, and the answer there."""
    it.telegram.say(guests(it), text)
    await it.hears(guests(it), answer)


async def ended(client: Client, run_id: str) -> str:
    """How a run ends."""
    names = [frame.event.event async for frame in client.follow(run_id)]
    return names[-1]


async def say(client: Client, text: str, mode: str = "interrupt") -> str:
    """Words of the operator in the same session; the run that reads them."""
    return await client.submit(RunRequest(text, session_id=HERE, mode=Mode(mode)))


async def until(client: Client, run_id: str, name: str) -> Frame:
    """The first event of a run that is called so."""
    async with aclosing(client.follow(run_id)) as frames:
        async for frame in frames:
            if frame.event.event == name:
                return frame
    raise AssertionError(f"{run_id} never came to {name}")


def read_by(model: ModelServer) -> list[str]:
    """What the model was last given of the conversation."""
    said = model.requests[-1].body["messages"]
    return [m["content"] for m in said if m["role"] in ("user", "assistant")]


@pytest.mark.promise("RUN-13")
async def test_a_session_goes_on_in_the_chat_and_at_the_terminal(
    both: Bot, model: ModelServer, client: Client
) -> None:
    await speak(both, "my name is Ada", "echo: my name is Ada")
    await both.gateway.kill()
    await both.gateway.start()
    assert await ended(client, await say(client, "at the terminal")) == "run.completed"
    await both.gateway.kill()
    await both.gateway.start()
    await speak(both, "and in the chat", "echo: and in the chat")
    assert read_by(model) == [
        "my name is Ada",
        "echo: my name is Ada",
        "at the terminal",
        "echo: at the terminal",
        "and in the chat",
    ]
    said = [m.text for m in (await client.history(HERE)).data]
    assert said == [*read_by(model), "echo: and in the chat"]
    assert not any("at the terminal" in text for text in both.said(guests(both)))
    (session,) = await client.list_sessions()
    assert (session.session_id, session.owner, session.unfinished) == (HERE, THEIRS, 0)


async def test_a_run_of_the_chat_is_shown_at_the_terminal_and_answered_in_the_chat(
    both: Bot, client: Client
) -> None:
    await speak(both, "hello", "echo: hello")
    after = (await client.history(HERE)).after
    both.telegram.say(guests(both), "say:for the chat")
    seen: list[str] = []
    async with aclosing(client.attend(HERE, after, lambda: ())) as frames:
        async for frame in frames:
            seen.append(frame.event.event)
            if frame.event.event == "run.completed":
                break
    assert frame.event.output == "for the chat"
    assert seen[0] == "run.queued"
    await both.hears(guests(both), "for the chat")


async def test_a_run_of_the_chat_makes_way_for_words_at_the_terminal_and_says_so(
    both: Bot, client: Client
) -> None:
    chat = guests(both)
    both.telegram.say(chat, "tool:hang {}")
    await both.hears(chat, "Working:")
    (busy,) = await client.runs(HERE)
    assert await ended(client, await say(client, "never mind")) == "run.completed"
    assert await ended(client, busy.run_id) == "run.cancelled"
    await both.hears(chat, "Stopped after 1 step")
    assert not any("Working:" in text for text in both.said(chat)), "no message is left dangling"
    assert not any("never mind" in text for text in both.said(chat))
    await speak(both, "still there?", "echo: still there?")


async def test_only_the_operator_answers_questions_of_a_terminal_run(
    both: Bot, client: Client
) -> None:
    chat, token = guests(both), secrets.token_hex(6)
    await speak(both, "hello", "echo: hello")
    run_id = await say(client, command(f"mkdir -p {token}"))
    await until(client, run_id, "approval.request")
    (asked,) = await client.approvals()
    assert "always" not in asked.choices, "it is not the operator's own session"
    both.telegram.say(chat, f"/approve {asked.request_id}")
    await both.hears(chat, NOTHING_WAITS)
    both.telegram.say(chat, "/stop")
    await both.hears(chat, "nothing here that you may stop")
    both.telegram.say(chat, "say:I can wait")
    await client.answer(asked, "session")
    assert await ended(client, run_id) == "run.completed"
    await both.hears(chat, "I can wait")
    assert not any(token in text for text in both.said(chat))
    both.telegram.say(chat, command(f"mkdir -p {token}"))
    await both.hears(chat, "May this run?")  # what the operator was granted is not the guest's


async def test_a_chat_message_does_not_answer_a_question_at_the_terminal(
    both: Bot, client: Client
) -> None:
    chat = both.telegram.private(OWNER)  # an administrator, who may answer everything
    both.telegram.say(chat, "hello")
    await both.hears(chat, "echo: hello")
    admins, session = client.for_owner(f"telegram:{OWNER}"), f"agent:main:telegram:dm:{OWNER}"
    text = f"tool:ask {json.dumps({'question': 'Which?'})}"
    run_id = await admins.submit(RunRequest(text, session_id=session))
    await until(admins, run_id, "question.asked")
    both.telegram.say(chat, "say:something else")
    await both.hears(chat, "something else")
    assert await ended(admins, run_id) == "run.cancelled"
    assert not any("Which?" in text for text in both.said(chat))


@pytest.mark.fault("F-34")
async def test_the_network_knows_nothing_of_anybodys_sessions(both: Bot, client: Client) -> None:
    await speak(both, "hello", "echo: hello")
    gateway, whose = both.gateway, {"X-Holdfast-Owner": THEIRS}
    assert (await gateway.get("/api/sessions"))[1]["data"] == []
    paths = ("", "/messages", "/messages?settled=true", "/events", "/diff")
    for path in paths:
        assert (await gateway.get(f"/api/sessions/{HERE}{path}"))[0] == 404
    named = [*(f"/api/sessions/{HERE}{path}" for path in paths), "/api/sessions", "/v1/runs"]
    named.append(f"/api/sessions?after={HERE}&after_owner={THEIRS}")
    for path in named:
        headers = {} if "after_owner" in path else whose
        async with gateway.http.get(gateway.url + path, headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (
                403,
                "admin_only",
            )
    for path, body in (
        ("/v1/runs", {"input": "hi", "session_id": HERE}),
        (f"/api/sessions/{HERE}/fork", {}),
    ):
        status, answer = await gateway.post(path, body, whose)
        assert (status, answer["error"]["code"]) == (403, "admin_only")
    assert len((await client.history(HERE)).data) == 2
    status, _ = await gateway.post("/v1/runs", {"input": "mine", "session_id": HERE})
    assert status == 202, "a session of the same name is the caller's own"
    listed = await client.for_owner("").list_sessions()
    assert [(one.session_id, one.owner) for one in listed] == [(HERE, ""), (HERE, THEIRS)]


async def test_no_owner_creates_a_session_for_another(both: Bot, client: Client) -> None:
    await speak(both, "hello", "echo: hello")
    for session_id in ("ses_new", None):
        with pytest.raises(NotFound, match=f"no such session of {THEIRS}"):
            await client.submit(RunRequest("hi", session_id=session_id))
    with pytest.raises(Exit, match="is no owner's name"):
        await client.for_owner("no one").submit(RunRequest("hi", session_id=HERE))
    assert len(await client.for_owner("").list_sessions()) == 1


async def test_commands_act_on_the_shared_session_and_new_creates_an_own_one(
    both: Bot, model: ModelServer, client: Client
) -> None:
    await speak(both, "one", "echo: one")
    await speak(both, "two", "echo: two")
    assert NO_ACTIVE_RUN in (await client.command(HERE, "/status")).output
    assert (await client.command(HERE, "/undo")).undone == "two"
    retried = await client.command(HERE, "/retry")
    assert (retried.session_id, retried.session_owner) == (HERE, THEIRS)
    assert await ended(client, str(retried.run_id)) == "run.completed"
    assert read_by(model) == ["one"]
    both.telegram.say(guests(both), "tool:hang {}")
    await both.hears(guests(both), "Working:")
    (busy, *_) = await client.runs(HERE)
    afresh = await client.command(HERE, "/new")
    assert (afresh.session_id.startswith("ses_"), afresh.session_owner) == (True, "")
    assert not (await client.status(busy.run_id)).ended, "it works for somebody else"
    assert (await client.command(HERE, "/stop")).output == "Stopped: 1 run."
    fork = await client.fork(HERE, "Mine")
    assert (fork.owner, fork.preview) == ("", "one")
    named = await client.rename(HERE, "Theirs")
    assert (named.owner, named.title) == (THEIRS, "Theirs")
    listed = await client.for_owner("").list_sessions(2)
    assert {(one.owner, one.title) for one in listed} == {("", "Mine"), (THEIRS, "Theirs")}


async def test_without_a_gateway_it_can_be_read_and_not_gone_on_with(
    both: Bot, client: Client
) -> None:
    await speak(both, "hello", "echo: hello")
    assert await both.gateway.stop() == 0
    assert [m.text for m in await client.transcript(HERE)] == ["hello", "echo: hello"]
    with pytest.raises(Exit, match="only a gateway serves"):
        await say(client, "hi")
    with pytest.raises(Exit, match="only a gateway serves"):
        await client.command(HERE, "/undo")


async def test_the_operator_lists_and_shows_sessions_of_all_owners(
    both: Bot, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT)}
    await speak(both, "by the river", "echo: by the river")
    listed = await place.holdfast("sessions")
    assert listed.out.startswith(HERE)
    assert listed.out.endswith(f"of {THEIRS}\n")
    shown = await place.holdfast("sessions", "show", HERE)
    assert f"- of: `{THEIRS}`" in shown.out
    assert "echo: by the river" in shown.out
    exported = await place.holdfast("sessions", "export", HERE, "--format", "json")
    assert msgspec.json.decode(exported.out)["owner"] == THEIRS
    assert (await place.holdfast("sessions", "rename", HERE, "River")).code == 0
    assert (await place.holdfast("sessions", "mark", "River")).code == 2
    forked = await place.holdfast("sessions", "fork", "River", "--json")
    fork = msgspec.json.decode(forked.out)
    assert (fork["title"], fork["owner"]) == ("River (fork)", "")


async def test_at_the_terminal_it_is_chosen_and_gone_on_with(
    both: Bot, model: ModelServer, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    await speak(both, "by the river", "echo: by the river")
    async with screen(both.gateway.environment, work, "--resume") as it:
        await it.until(f"telegram · {GUEST}")
        await it.key("Enter")
        await it.until("echo: by the river")
        await it.say("at the desk")
        await it.until("echo: at the desk")
        both.telegram.say(guests(both), "and in the chat")
        await it.until("echo: and in the chat")
        await it.key("C-d")
        assert await it.ended() == 0
        assert f"holdfast --resume {HERE}" in await it.said()
    assert read_by(model)[-3:] == ["at the desk", "echo: at the desk", "and in the chat"]
    await both.hears(guests(both), "echo: and in the chat")
    assert not any("at the desk" in text for text in both.said(guests(both)))


async def test_the_name_of_a_chats_session_begins_no_other_one_at_the_terminal(
    both: Bot, client: Client, tmp_path: Path
) -> None:
    await speak(both, "hello", "echo: hello")
    work = tmp_path / "work"
    work.mkdir()
    words = ("run", "hi", "--session", HERE)
    said = await forks.run(words, env=both.gateway.environment, cwd=work)
    assert (said.returncode, said.stdout) == (Code.USAGE, b"")
    assert THEIRS.encode() in said.stderr and f"holdfast --resume {HERE}".encode() in said.stderr
    listed = await client.for_owner("").list_sessions()
    assert [(one.session_id, one.owner) for one in listed] == [(HERE, THEIRS)]
