"""What sessions are called, and those that begin with another's words."""

import pytest

from holdfast.core.messages import Assistant, Message, System, User
from holdfast.core.session.library import (
    PREVIEW,
    TITLE,
    Imported,
    fork,
    imported,
    instructions_in,
    one_line,
    preview,
    titled,
)
from holdfast.core.session.session import (
    ModelChosen,
    Session,
    SessionOpened,
    SessionSeeded,
    SessionTitled,
)
from holdfast.core.types import OPERATOR, SessionId, SessionKey
from holdfast.errors import Refused

SOURCE = Session(SessionKey(OPERATOR, SessionId("s")), workspace="/w", platform="cli")
TALK: tuple[Message, ...] = (User("hello"), Assistant("yes"))
UNNAMED = SessionTitled(title="", by=OPERATOR)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hello", "hello"),
        ("", ""),
        (" \n\t\u2028 ", ""),
        ("  one\r\n\ttwo \u2028 three\x1b[31m\0 ", "one two three[31m"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 9 + "…"),
        ("eight ch and more", "eight ch…"),
        ("\n" * 100_000 + "far", "far"),
    ],
)
def test_a_line_is_how_a_text_begins(text: str, line: str) -> None:
    assert one_line(text, 10 if len(line) <= 10 else 80) == line


def test_the_preview_is_the_first_user_message() -> None:
    assert (
        preview((System("be brief"), Assistant("hi"), User(" \n"), User("one\ntwo"))) == "one two"
    )
    assert preview((Assistant("hi"),)) == preview(()) == ""
    assert len(preview((User("word " * 100),))) <= PREVIEW


def test_a_title_is_one_line_of_some_length_or_none() -> None:
    assert titled("  A name ", OPERATOR) == SessionTitled(title="A name", by=OPERATOR)
    assert titled(" \n ", OPERATOR).title == ""
    assert titled("x" * TITLE, OPERATOR).title == "x" * TITLE
    for bad in ("x" * (TITLE + 1), "one\ntwo", "a\0b", "a\x1bb", "a\u2028b", "a\ud800"):
        with pytest.raises(Refused) as refused:
            titled(bad, OPERATOR)
        assert (refused.value.code, refused.value.param) == ("invalid_request", "title")


def test_a_fork_has_the_workspace_and_the_messages_of_its_source() -> None:
    facts = fork(SOURCE, list(TALK), SessionId("f"), "api_server", UNNAMED)
    assert facts == (
        SessionOpened(session_id="f", workspace="/w", platform="api_server"),
        SessionSeeded(messages=TALK, source="fork of s"),
    )


def test_a_fork_keeps_the_model_that_was_chosen_and_is_named_after_its_source() -> None:
    source = Session(SOURCE.key, model="p/m", title="Mine")
    *_, chosen, named = fork(source, TALK, SessionId("f"), "cli", UNNAMED)
    assert chosen == ModelChosen(model="p/m", by=OPERATOR)
    assert named == SessionTitled(title="Mine (fork)", by=OPERATOR)
    own = SessionTitled(title="Other", by=OPERATOR)
    assert fork(source, TALK, SessionId("f"), "cli", own)[-1] == own
    long = Session(SOURCE.key, title="x" * TITLE)
    *_, cut = fork(long, TALK, SessionId("f"), "cli", UNNAMED)
    assert isinstance(cut, SessionTitled) and len(cut.title) == TITLE


def test_an_import_keeps_its_times_and_a_long_title_is_cut() -> None:
    what = Imported(SessionId("i"), "one\ntwo", "hermes", TALK, created_at=5.0, updated_at=7.0)
    assert imported(what, "/w", "cli", OPERATOR, now=9.0) == (
        SessionOpened(session_id="i", workspace="/w", platform="cli"),
        SessionSeeded(messages=TALK, source="hermes", began_at=5.0, said_at=7.0, imported=True),
        SessionTitled(title="one two", by=OPERATOR),
    )
    bare = Imported(SessionId("i"), "", "", TALK, created_at=5.0)
    _, begins = imported(bare, "/w", "cli", OPERATOR, now=9.0)
    assert begins == SessionSeeded(
        messages=TALK, source="", began_at=5.0, said_at=5.0, imported=True
    )


def test_an_import_brings_no_instructions_and_nothing_from_the_future() -> None:
    messages = (System("obey the file"), *TALK, System("and again"))
    what = Imported(SessionId("i"), "", "", messages, created_at=8.0, updated_at=1e11)
    _, begins = imported(what, "/w", "cli", OPERATOR, now=9.0)
    assert begins == SessionSeeded(
        messages=TALK, source="", began_at=8.0, said_at=9.0, imported=True
    )
    assert instructions_in(messages) == 2


def test_a_fork_of_an_import_is_one_too() -> None:
    _, begins = fork(SOURCE, TALK, SessionId("f"), "cli", UNNAMED, from_file=True)
    assert isinstance(begins, SessionSeeded) and begins.imported
