"""How an answer ended, in every wire format: cut at its limit, refused by a filter, or empty."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Filtered, Transient
from holdfast.models.model import Answer, Request
from holdfast.models.peer import Peer, Settings
from tests.fakes import anthropic, gemini, ollama, responses
from tests.fakes import model_server as openai
from tests.fakes.model_server import Reply
from tests.models.wires import REMOTES, Remote, remote_gateway

pytestmark = pytest.mark.anyio

REQUEST = Request("m", "", (), ())
PEER = Peer("p", "host", "m", "", Settings("KEY", "URL"))


def ended(how: str, text: str) -> dict[str, Reply]:
    """The same answer by all providers; `how`: stop, cut or filtered. Ollama has no filter."""
    reasons = {
        "openai": {"stop": "stop", "cut": "length", "filtered": "content_filter"},
        "anthropic": {"stop": "end_turn", "cut": "max_tokens", "filtered": "refusal"},
        "gemini": {"stop": "STOP", "cut": "MAX_TOKENS", "filtered": "SAFETY"},
        "ollama": {"stop": "stop", "cut": "length", "filtered": ""},
    }
    why = {"cut": "max_output_tokens", "filtered": "content_filter"}.get(how)
    kind = "response.incomplete" if why else "response.completed"
    more: dict[str, Any] = {"incomplete_details": {"reason": why}} if why else {}
    said = anthropic.words(text, 1) if text else []
    return {
        "openai": Reply((openai.token(text), openai.finish(reasons["openai"][how]), openai.DONE)),
        "anthropic": Reply(
            (anthropic.start(), *said, *anthropic.finish(reasons["anthropic"][how]))
        ),
        "gemini": Reply((gemini.token(text), gemini.finish(reason=reasons["gemini"][how]))),
        "ollama": ollama.reply(
            ollama.token(text), ollama.finish(reason=reasons["ollama"][how] or "stop")
        ),
        "responses": Reply(
            (*responses.START, responses.token(text), responses.finish(kind=kind, **more))
        ),
    }


def parsed(remote: Remote, reply: Reply) -> Answer:
    parser = remote.parser(PEER)
    for step in reply.steps:
        assert isinstance(step, bytes)
        parser.feed(step)
    parser.end()
    return parser.answer(REQUEST)


each = pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: remote.name)


@each
@pytest.mark.promise("SAY-03")
async def test_an_answer_that_reached_its_limit_is_marked(remote: Remote) -> None:
    assert parsed(remote, ended("cut", "half of")[remote.name]).cut
    assert not parsed(remote, ended("stop", "all of")[remote.name]).cut
    with pytest.raises(Transient):
        parsed(remote, ended("cut", "")[remote.name])


@each
@pytest.mark.promise("SAY-03")
async def test_an_answer_that_a_filter_refused_is_no_answer(remote: Remote) -> None:
    if remote.name == "ollama":
        return  # it has none
    with pytest.raises(Filtered):
        parsed(remote, ended("filtered", "half of")[remote.name])


@each
@pytest.mark.promise("SAY-03")
@pytest.mark.parametrize(
    ("how", "text", "mark"), [("cut", "half of", "cut"), ("stop", "", "empty"), ("stop", "all", "")]
)
async def test_a_run_says_if_its_answer_is_cut_or_empty(
    tmp_path: Path, remote: Remote, how: str, text: str, mark: str
) -> None:
    async with remote_gateway(tmp_path, remote, lambda _: ended(how, text)[remote.name]) as it:
        run_id = await it.run("go")
        done = await it.finished(run_id)
        assert (done["status"], done.get("output", ""), done.get("incomplete", "")) == (
            "completed",
            text,
            mark,
        )
        last = (await it.events(run_id)).frames[-1].data
        assert last.get("incomplete", "") == mark


@each
@pytest.mark.promise("SAY-03")
async def test_a_run_whose_answer_was_filtered_fails_with_its_own_code(
    tmp_path: Path, remote: Remote
) -> None:
    if remote.name == "ollama":
        return  # it has no filter
    async with remote_gateway(
        tmp_path, remote, lambda _: ended("filtered", "a")[remote.name]
    ) as it:
        done = await it.finished(await it.run("go"))
        assert (done["status"], done["error_code"]) == ("failed", "answer_filtered")
