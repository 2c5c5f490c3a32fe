"""The search index: what is found, in which order, and what a lost or damaged file costs."""

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.events import Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.messages import Assistant, Message, System, ToolResult, User
from holdfast.core.run.call import CallSettled, Outcome
from holdfast.core.run.run import ModelAnswered
from holdfast.core.session.session import SessionSeeded, SessionTitled
from holdfast.core.types import CallId, Fact, InputId, Owner, RunId, SessionId, SessionKey
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import SessionRow
from holdfast.journal.search import AFTER, BEFORE, FILE, Behind, Damaged, Hit, Index

ME = Owner("me")
RUN = RunId("run_1")
NOW = 1_700_000_000.0
DAY = 86_400.0


def asked(text: str, **metadata: str) -> InputAdmitted:
    return InputAdmitted(input_id=InputId("in"), run_id=RUN, text=text, metadata=metadata)


def answered(text: str) -> ModelAnswered:
    return ModelAnswered(run_id=RUN, turn=1, text=text)


def titled(title: str) -> SessionTitled:
    return SessionTitled(title=title, by=ME)


def seeded(*messages: Message, said_at: float = 0.0) -> SessionSeeded:
    return SessionSeeded(messages=messages, source="fork of x", said_at=said_at)


def row(owner: Owner, name: str, created_at: float, changed_at: float) -> SessionRow:
    key = SessionKey(owner, SessionId(name))
    times = (created_at, changed_at, changed_at)
    return SessionRow(key, 1, "", "", "open", "", "", "", *times, unfinished=0)


class Library:
    """An index, and sessions that are put into it as the journal would have them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = Index(path)
        self.index.open()

    def put(
        self,
        name: str,
        *facts: Fact,
        owner: Owner = ME,
        at: float = NOW,
        first: int = 1,
        created_at: float = 1.0,
    ) -> None:
        """A session's facts from number `first` on, all of the same time."""
        place = row(owner, name, created_at, at + first)
        records = [Record(1, number, at, fact) for number, fact in enumerate(facts, first)]
        for behind in self.index.behind([place]):
            self.index.take([(behind, records)])

    def hits(self, words: str, limit: int = 20, owner: Owner = ME) -> list[Hit]:
        return self.index.search(owner, words, limit, NOW)

    def find(self, words: str, owner: Owner = ME) -> list[str]:
        return [hit.session_id for hit in self.hits(words, owner=owner)]


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    made = Library(tmp_path / FILE)
    yield made
    made.index.close()


def test_messages_of_users_and_models_are_found_with_session_and_time(library: Library) -> None:
    library.put("s", asked("Why does the harbour freeze?"), answered("Because of the wind."))
    assert library.hits("harbour") == [
        Hit(SessionId("s"), "", "user", NOW, f"Why does the {BEFORE}harbour{AFTER} freeze?")
    ]
    [hit] = library.hits("wind")
    assert (hit.role, hit.snippet) == ("assistant", f"Because of the {BEFORE}wind{AFTER}.")


def test_all_the_words_must_be_in_one_message_and_each_may_be_the_beginning(
    library: Library,
) -> None:
    library.put("s", asked("deploy the website"), answered("done on Friday"))
    assert library.find("dep web") == ["s"]
    assert library.find("website DEPLOY") == ["s"]
    assert library.find("deploy friday") == []
    assert library.find("ploy") == []


def test_case_does_not_count_nor_do_the_accents_of_latin_letters(library: Library) -> None:
    library.put("fr", asked("Où est le Café Métro?"))
    library.put("gr", asked("Η Αθήνα είναι όμορφη"))
    library.put("ru", asked("Ещё один вопрос"))
    assert library.find("cafe metro") == ["fr"]
    assert library.find("CAFÉ") == ["fr"]
    assert library.find("ΑΘΉΝΑ") == ["gr"]
    assert library.find("вопрос") == ["ru"]


def test_scripts_without_spaces_are_found_in_the_middle_and_shown_as_they_were(
    library: Library,
) -> None:
    library.put("zh", asked("请问今天天气怎么样"))
    library.put("ja", asked("東京タワーへ行きたいです"))
    [hit] = library.hits("天气")
    assert (hit.session_id, hit.snippet) == ("zh", f"请问今天{BEFORE}天气{AFTER}怎么样")
    assert library.find("タワー") == ["ja"]
    assert library.find("气天") == []


def test_tool_output_and_notices_are_not_found(library: Library) -> None:
    settled = CallSettled(
        run_id=RUN, call_id=CallId("c"), tool="terminal", outcome=Outcome.OK, text="needle"
    )
    notice = "[Background process p1 has ended: exit code 0. Command: needle]\nneedle"
    ended = "[Task run_2 has ended: completed]\nneedle"
    library.put(
        "s",
        settled,
        asked(notice, process_id="p1"),
        asked(ended, task_id="run_2"),
        seeded(System("needle"), ToolResult(CallId("c"), "needle")),
    )
    assert library.find("needle") == []
    library.put("t", asked("needle", task_id="a caller's own"))
    assert library.find("needle") == ["t"]


def test_a_fork_and_an_import_are_found_by_what_they_began_with(library: Library) -> None:
    library.put("f", seeded(User("about herons"), Assistant("they fish"), said_at=NOW - DAY))
    [hit] = library.hits("heron")
    assert (hit.role, hit.at) == ("user", NOW - DAY)
    assert library.find("they fish") == ["f"]


def test_a_title_is_found_comes_with_every_hit_and_only_the_last_one_counts(
    library: Library,
) -> None:
    library.put("s", asked("hello there"), titled("Greetings"))
    library.put("s", titled("Salutations"), first=3)
    [hit] = library.hits("salut")
    assert (hit.role, hit.title) == ("title", "Salutations")
    assert library.hits("hello")[0].title == "Salutations"
    assert library.find("greetings") == []
    library.put("s", titled(""), first=4)
    assert library.find("salut") == []
    assert library.hits("hello")[0].title == ""


def test_a_session_comes_once_with_its_best_place(library: Library) -> None:
    library.put("s", asked("boats " + "and so on " * 200), answered("boats, boats"), asked("ships"))
    library.put("t", *(asked(f"nothing {n}") for n in range(20)))
    [hit] = library.hits("boats")
    assert hit.role == "assistant"


def test_of_equal_ones_the_newest_comes_first_and_no_more_than_asked(library: Library) -> None:
    for n in range(8):
        library.put(f"s{n}", asked("the same words"), at=NOW - (n * 37 % 8) * DAY)
    newest_first = sorted(range(8), key=lambda n: n * 37 % 8)
    assert library.find("same words") == [f"s{n}" for n in newest_first]
    assert [h.session_id for h in library.hits("same", limit=3)] == [
        f"s{n}" for n in newest_first[:3]
    ]


def test_a_better_place_comes_before_a_slightly_newer_one(library: Library) -> None:
    library.put("about", asked("granite granite"), at=NOW - 2 * DAY)
    library.put("aside", asked("granite " + "among much else " * 300), at=NOW - DAY)
    for n in range(20):
        library.put(f"other{n}", asked("something else"))
    assert library.find("granite") == ["about", "aside"]


def test_an_exact_word_ranks_before_longer_ones(library: Library) -> None:
    library.put("itself", asked("of port 80 and so on"), at=NOW - 3 * DAY)
    for n in range(10):
        library.put(f"longer{n}", asked(f"of port 80{n} and so on"))
    assert library.find("80")[0] == "itself"
    assert len(library.find("80")) == 11


def test_only_the_owners_own_sessions_are_found(library: Library) -> None:
    library.put("s", asked("secret plans"))
    library.put("s", asked("secret garden"), owner=Owner("other"))
    assert [h.snippet for h in library.hits("secret")] == [f"{BEFORE}secret{AFTER} plans"]
    assert library.find("garden") == []
    assert library.find("garden", owner=Owner("other")) == ["s"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ('say "hello world"', ["s"]),
        ('"', []),
        ('""" hello', ["s"]),
        ("hello AND world", []),
        ("hello OR nothing", []),
        ("NOT hello", []),
        ("hello*", ["s"]),
        ("* hello", ["s"]),
        ("*", []),
        ("NEAR(hello world, 5)", []),
        ("text:hello", []),
        ("role : hello", []),
        ("^hello", ["s"]),
        ("hello + world", ["s"]),
        ("-hello", ["s"]),
        ("(hello", ["s"]),
        ("{text} : hello", []),
        ("hello 🎉", ["s"]),
        ("🎉", []),
        ("👩‍👩‍👧‍👦 🏳️‍🌈", []),
        ("hello\0world", ["s"]),
        ("hello \ud800", ["s"]),
        ("'; DROP TABLE said; --", []),
        ("%", []),
        ("\\", []),
        ("   ", []),
    ],
)
def test_a_query_is_never_read_as_fts_syntax(
    library: Library, words: str, found: list[str]
) -> None:
    library.put("s", asked('They say "hello world" 🎉 to everybody'))
    assert library.find(words) == found


@given(st.text(max_size=60))
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_nothing_that_can_be_typed_is_an_error(library: Library, words: str) -> None:
    assert isinstance(library.hits(words), list)


@given(st.text(alphabet='"*^():{}-+ANDORTNE hello\0🎉天气\u200b', max_size=40))
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_nothing_that_looks_like_a_language_is_an_error(library: Library, words: str) -> None:
    assert isinstance(library.hits(words), list)


def test_a_snippet_is_one_line_of_bounded_length_with_the_hit_in_it(library: Library) -> None:
    library.put("s", asked("a\n" * 500 + "needle\n\n\tin\r\nhay" + "\nb" * 500))
    library.put("t", asked("https://example.org/" + "x/" * 5000 + " thread"))
    library.put("u", asked("z" * 100_000))
    for words in ("needle", "thread", "zzz"):
        [hit] = library.hits(words)
        assert BEFORE in hit.snippet
        assert AFTER in hit.snippet
        assert "\n" not in hit.snippet
        assert len(hit.snippet) <= 302


def test_an_indexed_message_is_not_added_twice(library: Library) -> None:
    library.put("s", asked("one"), answered("two"))
    everything = [asked("one"), answered("two"), asked("three")]
    place = row(ME, "s", 1.0, NOW + 99)
    [behind] = library.index.behind([place])
    assert behind == Behind(place, 2)
    records = [Record(1, n, NOW, fact) for n, fact in enumerate(everything, 1)]
    library.index.take([(behind, records)])
    assert library.index.behind([place]) == []
    assert library.find("three") == ["s"]
    with closing(sqlite3.connect(library.path)) as connection:
        assert connection.execute("SELECT count(*) FROM said").fetchone() == (3,)


def test_another_session_of_the_same_name_takes_its_place(library: Library) -> None:
    library.put("s", asked("the old one"), titled("Old"))
    library.put("s", asked("the new one"), created_at=2.0)
    assert library.find("old") == []
    assert [(h.session_id, h.title) for h in library.hits("new")] == [("s", "")]


def test_how_far_it_is_caught_up_is_kept_for_each_owner(library: Library) -> None:
    assert library.index.caught_up(ME) == 0.0
    library.index.catch_up(ME, NOW)
    assert library.index.caught_up(ME) == NOW
    assert library.index.caught_up(Owner("other")) == 0.0


def test_the_file_is_the_owners_alone_and_what_it_holds_outlives_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        library = Library(tmp_path / FILE)
        library.put("s", asked("kept"))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
        library.index.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    again = Library(tmp_path / FILE)
    assert again.find("kept") == ["s"]
    again.index.close()


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be looked at" * 40, b"SQLite format 3\0xx"]
)
def test_a_file_that_is_no_index_is_damaged_and_can_be_discarded(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    index = Index(path)
    with pytest.raises(Damaged):
        index.open()
    index.discard()
    assert list(tmp_path.iterdir()) == []
    index.open()
    assert index.search(ME, "anything", 1, NOW) == []
    index.close()


@pytest.mark.parametrize(
    "harm",
    ["DROP TABLE said", "DROP TABLE sessions", "DELETE FROM said_data", "PRAGMA user_version = 99"],
)
def test_a_damaged_index_is_reported(tmp_path: Path, harm: str) -> None:
    library = Library(tmp_path / FILE)
    library.put("s", asked("hello"))
    library.index.close()
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.execute(harm)
    index = Index(tmp_path / FILE)

    def use() -> Sequence[Hit]:
        index.open()
        return index.search(ME, "hello", 1, NOW)

    with pytest.raises(Damaged):
        use()
    index.discard()


def test_an_unwritable_index_is_reported_and_not_discarded(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    index = Index(tmp_path / "gone" / "deeper" / FILE)
    with pytest.raises(JournalUnavailable, match="cannot be used"):
        index.open()
    index.close()
