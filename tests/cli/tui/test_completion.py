"""What the input line suggests: commands, files of the workspace, paths; and what it never does."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document

from holdfast.cli.tui.input import ignored
from holdfast.cli.tui.input.completion import InputCompleter
from holdfast.cli.tui.input.files import Files, rank
from holdfast.cli.tui.input.paste import Pastes

pytestmark = pytest.mark.anyio

TYPED = CompleteEvent(text_inserted=True)
TAB = CompleteEvent(completion_requested=True)
PATIENT_S = 60.0  # a busy machine must not cut a walk short
COMMANDS = [
    ("status", "", "what goes on"),
    ("steer", "[words]", "tell the run something"),
    ("/quit", "", "leave"),
]


def make(root: Path, *names: str) -> None:
    """Files, and directories where a name ends with a slash."""
    for name in names:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()


def completer(root: Path, entries: int = 20_000) -> InputCompleter:
    return InputCompleter(root, COMMANDS, files=Files(entries, PATIENT_S))


def offered(found: InputCompleter, text: str, event: CompleteEvent = TYPED) -> list[str]:
    return [one.text for one in found.get_completions(Document(text), event)]


def shown(one: Completion) -> tuple[str, str]:
    return one.display_text, one.display_meta_text


def test_a_slash_at_the_beginning_offers_the_commands_with_their_help(tmp_path: Path) -> None:
    found = completer(tmp_path)
    assert offered(found, "/") == ["/quit", "/status", "/steer "]
    assert offered(found, "/ST") == ["/status", "/steer "]
    assert offered(found, "/sts") == ["/status"]
    [one] = found.get_completions(Document("/stee"), TYPED)
    assert shown(one) == ("/steer [words]", "tell the run something")
    assert one.start_position == -len("/stee")


def test_a_slash_anywhere_else_is_no_command(tmp_path: Path) -> None:
    found = completer(tmp_path)
    for text in ("see /st", "hello\n/st", " /st", "/steer st", "/etc/"):
        assert offered(found, text) == []


def test_commands_can_be_set_later(tmp_path: Path) -> None:
    found = InputCompleter(tmp_path)
    assert offered(found, "/") == []
    found.commands = [("evil\x1b[2J", "", "\u202ehelp")]
    [one] = found.get_completions(Document("/e"), TYPED)
    assert shown(one) == ("/evil\\u{1b}[2J", "\\u{202e}help")


def test_an_at_sign_finds_files_by_their_letters_the_best_first(tmp_path: Path) -> None:
    make(tmp_path, "src/main.py", "src/domain.py", "docs/my_animal_n.md", "mit/a/ni/n.md", "x.txt")
    assert offered(completer(tmp_path), "look at @main") == [
        "@src/main.py",
        "@src/domain.py",
        "@docs/my_animal_n.md",
        "@mit/a/ni/n.md",
    ]
    assert offered(completer(tmp_path), "(@X") == ["@x.txt"]


def test_an_at_sign_alone_lists_what_is_near_first(tmp_path: Path) -> None:
    make(tmp_path, "b.txt", "a/deep.txt", "a/b/deeper.txt")
    assert offered(completer(tmp_path), "@") == [
        "@a/",
        "@b.txt",
        "@a/b/",
        "@a/deep.txt",
        "@a/b/deeper.txt",
    ]


def test_an_at_sign_within_a_word_means_nothing(tmp_path: Path) -> None:
    make(tmp_path, "example.txt")
    assert offered(completer(tmp_path), "me@exam") == []


def test_a_named_directory_is_looked_into_even_if_it_is_skipped_otherwise(tmp_path: Path) -> None:
    make(tmp_path, "node_modules/left/pad.js", ".git/config", "pad.py")
    found = completer(tmp_path)
    assert offered(found, "@pad") == ["@pad.py"]
    assert offered(found, "@node_modules/pad") == ["@node_modules/left/pad.js"]
    assert offered(found, "@.git/") == ["@.git/config"]


def test_hidden_files_are_found_only_if_asked_for(tmp_path: Path) -> None:
    make(tmp_path, ".env", ".github/ci.yml", "env.py", "__pycache__/env.pyc", ".venv/env")
    assert offered(completer(tmp_path), "@env") == ["@env.py"]
    assert offered(completer(tmp_path), "@.e") == ["@.env"]


def test_ignored_files_are_not_found(tmp_path: Path) -> None:
    make(tmp_path, "build/out.txt", "a.log", "keep.log", "sub/a.log", "sub/only.txt", "only.txt")
    make(tmp_path, "sub/deep/only.txt", "sub/build", "docs/x/gen.txt")
    rules = "# comment\n*.log\n!keep.log\nbuild/\n/only.txt\ndocs/**/gen.txt\n\n"
    (tmp_path / ".gitignore").write_text(rules)
    (tmp_path / "sub" / ".gitignore").write_text("deep/only.txt\n!a.log\n")
    assert offered(completer(tmp_path), "@") == [
        "@docs/",
        "@keep.log",
        "@sub/",
        "@docs/x/",
        "@sub/a.log",
        "@sub/build",
        "@sub/deep/",
        "@sub/only.txt",
    ]


@given(st.text(), st.text(min_size=1))
def test_no_gitignore_can_break_the_walk(text: str, name: str) -> None:
    rules = (ignored.read("", text),)
    assert ignored.ignores(rules, f"a/{name}", name, directory=False) in (True, False)


def test_a_name_with_spaces_comes_in_quotes_and_can_be_gone_on_with(tmp_path: Path) -> None:
    make(tmp_path, "my notes/to do.txt", "it's.txt", "both\"'.txt")
    found = completer(tmp_path)
    assert offered(found, "@todo") == ['@"my notes/to do.txt"']
    assert offered(found, "@my") == ['@"my notes/', '@"my notes/to do.txt"']
    [one] = found.get_completions(Document('see @"my notes/to'), TYPED)
    assert one.text == '@"my notes/to do.txt"'
    assert one.start_position == -len('@"my notes/to')
    assert offered(found, "@its") == ['@"it\'s.txt"']
    assert offered(found, "@both") == []  # no quotes can hold it
    assert offered(found, '"./my', TAB) == ['"./my notes/']


def test_a_name_that_steers_a_terminal_is_not_offered_and_what_hides_is_shown(
    tmp_path: Path,
) -> None:
    make(tmp_path, "a\x1b[2J.txt", "a\u202etxt.exe", "a\nb", "a\u202f9.png", "a.txt")
    (tmp_path / os.fsdecode(b"a\xff.txt")).touch()
    found = list(completer(tmp_path).get_completions(Document("@a"), TYPED))
    assert [one.text for one in found] == ["@a.txt", '@"a\u202f9.png"']
    assert [one.display_text for one in found] == ["a.txt", "a\\u{202f}9.png"]
    assert offered(completer(tmp_path), "./a", TAB) == ["./a.txt", '"./a\u202f9.png"']


def test_nothing_outside_the_workspace_is_mentioned(tmp_path: Path) -> None:
    make(tmp_path, "outside/secret.txt", "inside/open.txt")
    (tmp_path / "inside" / "way").symlink_to(tmp_path / "outside")
    found = completer(tmp_path / "inside")
    assert offered(found, "@secret") == []
    assert offered(found, "@way/secret") == []
    assert offered(found, "@../outside/secret") == []
    assert offered(found, "@way") == ["@way"]


def test_a_large_tree_is_walked_only_so_far_the_near_first(tmp_path: Path) -> None:
    make(tmp_path, *(f"deep/{n}/{m}.txt" for n in range(10) for m in range(10)), "top.txt")
    found = offered(completer(tmp_path, entries=30), "@txt")
    assert found[0] == "@top.txt"
    assert len(found) == 19  # 2 + 10 + 18 entries were looked at
    assert offered(InputCompleter(tmp_path, files=Files(20_000, 0.0)), "@txt") == []


def test_tab_completes_a_path_as_a_shell_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "src/main.py", "src/make/", "src/.hidden", "home/notes.txt")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = completer(tmp_path)
    assert offered(found, "see ./src/ma", TAB) == ["./src/main.py", "./src/make/"]
    assert offered(found, "src/", TAB) == ["src/main.py", "src/make/"]
    assert offered(found, "src/.", TAB) == ["src/.hidden"]
    assert offered(found, "~", TAB) == ["~/"]
    assert offered(found, "~/no", TAB) == ["~/notes.txt"]
    assert offered(found, f"{tmp_path}/ho", TAB) == [f"{tmp_path}/home/"]
    shown = [one.display_text for one in found.get_completions(Document("src/m"), TAB)]
    assert shown == ["main.py", "make/"]


def test_a_path_is_not_completed_unless_asked_and_other_words_never(tmp_path: Path) -> None:
    make(tmp_path, "src/main.py")
    found = completer(tmp_path)
    assert offered(found, "./src/ma") == []
    for text in ("src", "", "https://src/ma", "no/such/ma", "\x00/x"):
        assert offered(found, text, TAB) == []


def test_nothing_completes_within_a_label_but_what_follows_it_does(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    pastes = Pastes()
    label = pastes.paste("@a\n" * 9)
    found = InputCompleter(tmp_path, spans=pastes.spans, files=Files(seconds=PATIENT_S))
    for cursor in range(1, len(label) + 1):
        assert list(found.get_completions(Document(label, cursor), TAB)) == []
    assert offered(found, f"{label} @a") == ["@a.txt"]
    assert offered(found, f"{label}@a") == ["@a.txt"]


async def test_the_disk_is_asked_beside_the_prompt(tmp_path: Path) -> None:
    make(tmp_path, "a.txt")
    found = completer(tmp_path)
    for text, expected in (("@a", "@a.txt"), ("/qui", "/quit")):
        completions = found.get_completions_async(Document(text), TYPED)
        assert [one.text async for one in completions] == [expected]
    assert [one async for one in found.get_completions_async(Document("hello"), TAB)] == []


@given(st.text(max_size=8), st.text(max_size=20))
def test_a_path_is_found_by_any_of_its_letters_in_order(query: str, path: str) -> None:
    rest = iter(path.lower())
    wanted = query.lower()
    assert (rank(wanted, path) is not None) == all(letter in rest for letter in wanted)
