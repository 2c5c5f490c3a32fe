"""Sessions of hermes-agent: every form it has kept them in is read, and nothing is touched."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.schema.sessions import MessageObject, ToolCallObject, ToolFunction
from holdfast.cli.sessions import hermes
from holdfast.cli.sessions.hermes import NotHermes, Old

BEGUN = 1_750_000_000.0

# The tables as of its schema version 30, and as they were at first.
NOW = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, created_source TEXT, user_id TEXT, session_key TEXT,
    chat_id TEXT, display_name TEXT, origin_json TEXT, model TEXT, model_config TEXT,
    system_prompt TEXT, system_prompt_hash TEXT, parent_session_id TEXT, started_at REAL NOT NULL,
    ended_at REAL, end_reason TEXT, message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0, input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0, cwd TEXT, git_branch TEXT, title TEXT, title_source TEXT,
    last_activity_at REAL, rewind_count INTEGER NOT NULL DEFAULT 0,
    archived INTEGER NOT NULL DEFAULT 0, pinned INTEGER NOT NULL DEFAULT 0,
    hidden INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT,
    effect_disposition TEXT, timestamp REAL NOT NULL, token_count INTEGER, finish_reason TEXT,
    reasoning TEXT, reasoning_content TEXT, reasoning_details TEXT, codex_reasoning_items TEXT,
    codex_message_items TEXT, platform_message_id TEXT, observed INTEGER DEFAULT 0,
    _compressed_summary INTEGER NOT NULL DEFAULT 0, active INTEGER NOT NULL DEFAULT 1,
    compacted INTEGER NOT NULL DEFAULT 0, api_content TEXT, display_kind TEXT
);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
CREATE INDEX idx_messages_session_id ON messages(session_id, id);
"""
AT_FIRST = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT,
    system_prompt TEXT, parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL,
    end_reason TEXT, message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0, output_tokens INTEGER DEFAULT 0
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT,
    timestamp REAL NOT NULL, token_count INTEGER
);
"""
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "terminal", "arguments": '{"command": "ls"}'},
}
CALLED = (ToolCallObject("call_1", ToolFunction("terminal", '{"command": "ls"}')),)


class Database:
    """A state.db, as hermes-agent would have it."""

    def __init__(self, path: Path, schema: str = NOW) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.executescript(schema)
        self._at = BEGUN

    def session(self, name: str, **columns: Any) -> None:
        self._insert("sessions", {"id": name, "source": "cli", "started_at": BEGUN, **columns})

    def message(self, session: str, role: str, content: Any = None, **columns: Any) -> None:
        self._at += 1
        row = {"session_id": session, "role": role, "content": content, "timestamp": self._at}
        self._insert("messages", {**row, **columns})

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values())
        )


@contextmanager
def database(path: Path, schema: str = NOW) -> Iterator[Database]:
    made = Database(path, schema)
    with closing(made.connection):
        yield made


def read(path: Path) -> list[Old]:
    found = list(hermes.read(path))
    return [one for one in found if isinstance(one, Old)]


def messages(path: Path) -> tuple[MessageObject, ...]:
    [one] = read(path)
    return one.session.messages


def test_a_session_comes_with_its_name_its_times_its_place_and_all_that_was_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    with database(path) as made:
        made.session("20260101_120000_abc123", title="Fix the build", cwd="/src", source="telegram")
        for role, content, more in (
            ("session_meta", None, {}),
            ("user", "What is here?", {}),
            ("assistant", "", {"tool_calls": json.dumps([CALL])}),
            ("tool", "README", {"tool_call_id": "call_1", "tool_name": "terminal"}),
            ("assistant", "A README.", {"reasoning": "hm"}),
        ):
            made.message("20260101_120000_abc123", role, content, **more)
    [one] = read(path)
    found = one.session
    assert found.session_id == "hermes-20260101_120000_abc123"
    assert (found.title, found.workspace) == ("Fix the build", "/src")
    assert (found.created_at, found.updated_at) == (BEGUN, BEGUN + 5)
    assert found.source == "hermes-agent (telegram)"
    assert found.messages == (
        MessageObject("user", "What is here?"),
        MessageObject("assistant", "", CALLED),
        MessageObject("tool", "README", tool_call_id="call_1"),
        MessageObject("assistant", "A README."),
    )
    assert one.damaged == 0


def test_deeply_nested_json_counts_as_damage(tmp_path: Path) -> None:
    deep = "[" * 100_000
    below = tmp_path / "sessions"
    below.mkdir()
    (below / "session_a.json").write_text('{"messages": ' + deep)
    lines = [
        '{"role": "user", "content": ' + deep + "]" * 100_000 + "}",
        '{"role": "user", "content": "hello"}',
        json.dumps({"role": "user", "content": f"\x01json:{deep}"}),
        json.dumps({"role": "assistant", "content": "hi", "tool_calls": deep}),
    ]
    (below / "b.jsonl").write_text("\n".join(lines))
    one, unread = hermes.read(tmp_path)
    assert isinstance(unread, NotHermes) and "nested too deeply" in str(unread)
    assert isinstance(one, Old)
    assert one.session.messages == (
        MessageObject("user", "hello"),
        MessageObject("assistant", "hi"),
    )
    assert one.damaged == 3


@pytest.mark.parametrize("when", ["1969-12-31T23:00:00", "0001-01-01", "9999-12-31", -5, 1e300])
def test_a_time_that_cannot_be_is_none(tmp_path: Path, when: object) -> None:
    row = {"role": "user", "content": "hello", "timestamp": when}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    [one] = read(tmp_path)
    assert (one.session.created_at, one.session.updated_at) == (None, None)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "session_b.json").mkdir()
    (tmp_path / "c.jsonl").write_text('{"role": "user", "content": "hello"}')
    assert [one.session.session_id for one in read(tmp_path)] == ["hermes-c"]
    assert hermes.count(tmp_path) == 1


def test_a_database_of_the_first_version_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with database(path, AT_FIRST) as made:
        made.session("s")
        made.message("s", "user", "hello")
    [one] = read(path)
    assert (one.session.title, one.session.workspace) == (None, None)
    assert one.session.messages == (MessageObject("user", "hello"),)


def test_undone_and_summarized_messages_are_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with database(path) as made:
        made.session("s")
        made.message("s", "user", "rewound", active=0)
        made.message("s", "user", "long ago", active=0, compacted=1)
        made.message("s", "user", "In short: long ago.")
    assert messages(path) == (MessageObject("user", "In short: long ago."),)


@pytest.mark.parametrize("mark", ["\0json:", "\x01json:"])
def test_content_in_parts_becomes_words_and_says_where_pictures_were(
    tmp_path: Path, mark: str
) -> None:
    path = tmp_path / "state.db"
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:…"}},
        "and this",
    ]
    with database(path) as made:
        made.session("s")
        made.message("s", "user", mark + json.dumps(parts))
    assert messages(path) == (MessageObject("user", "look\n[image]\nand this"),)


def test_damaged_messages_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with database(path) as made:
        made.session("s")
        made.message("s", "wizard", "abracadabra")
        made.message("s", "user", "\0json:{broken")
        made.message("s", "tool", "whose?")
        made.message("s", "assistant", "words stay", tool_calls="[{broken")
        made.message("s", "assistant", "", tool_calls=json.dumps([CALL, {"id": "x"}, 7]))
        made.message("s", "assistant", "", tool_calls='"a text"')
        made.message("s", "user", b"caf\xe9")
        made.message("s", "assistant", None)
    [one] = read(path)
    assert one.session.messages == (
        MessageObject("assistant", "words stay"),
        MessageObject("assistant", "", CALLED),
        MessageObject("user", "caf\N{REPLACEMENT CHARACTER}"),
    )
    assert one.damaged == 7


def test_times_that_cannot_be_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with database(path) as made:
        made.session("s", started_at=5e246)
        made.message("s", "user", "hello", timestamp="garbage")
    [one] = read(path)
    assert (one.session.created_at, one.session.updated_at) == (None, None)


def test_ids_that_ours_cannot_be_are_changed_and_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    names = ["a b", "a/b", "ü", "x" * 300]
    with database(path) as made:
        for name in names:
            made.session(name)
            made.message(name, "user", "hello")
    found = {one.session.session_id for one in read(path)}
    assert len(found) == len(names)
    assert all(len(name) <= 255 and name.startswith("hermes-") for name in found)
    assert any(name.startswith("hermes-a_b-") for name in found)


def test_it_is_read_while_hermes_is_at_work_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with database(path) as made:
        made.session("s")
        made.message("s", "user", "in the log only")
        assert (tmp_path / "state.db-wal").stat().st_size > 0
        before = path.read_bytes()
        made.connection.execute("BEGIN IMMEDIATE")
        made.message("s", "user", "not committed")
        assert messages(path) == (MessageObject("user", "in the log only"),)
        made.connection.execute("COMMIT")
        assert len(messages(path)) == 2
        assert path.read_bytes() == before


def test_reading_an_idle_database_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "home" / "state.db"
    with database(path) as made:
        made.session("s")
        made.message("s", "user", "hello")
    assert os.listdir(path.parent) == ["state.db"]
    path.parent.chmod(0o500)
    path.chmod(0o400)
    try:
        assert messages(path) == (MessageObject("user", "hello"),)
        assert os.listdir(path.parent) == ["state.db"]
    finally:
        path.parent.chmod(0o700)


def test_a_transcript_of_lines_is_read_and_a_torn_line_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "20260418_192600_ab12cd34.jsonl"
    lines: list[dict[str, Any]] = [
        {"role": "session_meta", "platform": "slack", "timestamp": "2026-04-18T19:26:00+00:00"},
        {"role": "user", "content": "hello", "timestamp": "2026-04-18T19:26:05+00:00"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "README", "tool_call_id": "call_1"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"role": "user", "cont'
    path.write_text(text)
    [one] = read(path)
    assert one.session.session_id == "hermes-20260418_192600_ab12cd34"
    assert one.session.created_at == 1_776_540_360.0
    assert one.session.updated_at == 1_776_540_365.0
    assert one.session.source == "hermes-agent (slack)"
    assert [said.role for said in one.session.messages] == ["user", "assistant", "tool"]
    assert one.damaged == 1


def test_a_snapshot_of_a_terminal_is_read(tmp_path: Path) -> None:
    path = tmp_path / "session_20260101_000000_ffffff.json"
    path.write_text(
        json.dumps(
            {
                "session_id": "20260101_000000_ffffff",
                "model": "m",
                "platform": "cli",
                "session_start": "2026-01-01T00:00:00+00:00",
                "last_updated": "2026-01-01T01:00:00+00:00",
                "message_count": 1,
                "messages": [{"role": "user", "content": "hello"}],
            }
        )
    )
    [one] = read(path)
    assert one.session.session_id == "hermes-20260101_000000_ffffff"
    assert one.session.created_at == 1_767_225_600.0
    assert one.session.updated_at == 1_767_229_200.0
    assert one.session.messages == (MessageObject("user", "hello"),)


def test_its_own_export_is_read_one_session_a_line(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    rows: list[dict[str, Any]] = [
        {"id": "a", "source": "cli", "started_at": BEGUN, "title": "A", "cwd": None},
        {"id": "b", "source": "cli", "started_at": BEGUN, "title": None},
    ]
    said = [{"role": "user", "content": "hi", "timestamp": BEGUN, "tool_calls": None}]
    path.write_text("".join(json.dumps({**row, "messages": said}) + "\n" for row in rows))
    assert [(o.session.session_id, o.session.title) for o in read(path)] == [
        ("hermes-a", "A"),
        ("hermes-b", None),
    ]


def test_in_a_home_the_database_counts_first_and_profiles_are_read_too(tmp_path: Path) -> None:
    home = tmp_path / ".hermes"
    with database(home / "state.db") as made:
        made.session("both")
        made.message("both", "user", "from the database")
        made.session("empty")
    with database(home / "profiles" / "coder" / "state.db") as made:
        made.session("other")
        made.message("other", "user", "of a profile")
    below = home / "sessions"
    below.mkdir()
    for name in ("both", "empty"):
        (below / f"{name}.jsonl").write_text('{"role": "user", "content": "from a file"}\n')
    (below / "sessions.json").write_text('{"agent:main:cli": {"session_id": "both"}}')
    (below / "request_dump_1.json").write_text('{"messages": []}')
    assert hermes.is_home(home)
    assert {o.session.session_id: o.session.messages[0].text for o in read(home)} == {
        "hermes-both": "from the database",
        "hermes-empty": "from a file",
        "hermes-other": "of a profile",
    }
    assert hermes.count(home) == 5


def test_an_unreadable_file_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is no database, however long it is" * 100)
    (tmp_path / "session_x.json").write_text("[1, 2")
    (tmp_path / "session_y.json").write_text('["no object"]')
    (tmp_path / "good.jsonl").write_text('{"role": "user", "content": "hello"}\n')
    found = list(hermes.read(tmp_path))
    assert [str(one).split(": ")[0] for one in found if isinstance(one, NotHermes)] == [
        str(tmp_path / name) for name in ("state.db", "session_x.json", "session_y.json")
    ]
    assert [o.session.session_id for o in found if isinstance(o, Old)] == ["hermes-good"]


def test_a_directory_without_any_has_none(tmp_path: Path) -> None:
    assert not hermes.is_home(tmp_path)
    assert not hermes.is_home(tmp_path / "nowhere")
    assert list(hermes.read(tmp_path)) == []
