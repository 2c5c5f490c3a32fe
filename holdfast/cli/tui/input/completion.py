"""Complete a word: to a command, a file of the workspace, or a path.

`/` at the beginning of the input is a command. `@` at the beginning of a word is a file or a
directory below the workspace, found by a few of its letters. A word that looks like a path is
completed as a shell does, and only on Tab.

A name with spaces or quotes is quoted. A mention stays in the input as it is: `@"my notes.txt"`
names exactly one file, and the agent has tools to read it.

Anyone may have written the names on the disk. Hidden characters in a name are shown escaped. A name
that could steer a terminal is not offered: unescaped it would steer, escaped it would name no
file.
"""

import re
import unicodedata
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from pathlib import Path

from anyio import to_thread
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from holdfast.cli.tui.input.files import Files, quoted
from holdfast.core.text.escape import is_hidden, reveal
from holdfast.core.types import Value

# Name, arguments as the help shows them, help.
About = tuple[str, str, str]
# Where the labels of what was pasted begin and end in a text.
Spans = Callable[[str], Iterable[tuple[int, int]]]

_COMMAND = re.compile(r"/([A-Za-z_]*)")
_OPENED = re.compile(r"""(?<![^\s(\[{])(@?)(?:"([^"\n]*)|'([^'\n]*))\Z""")
_BARE = re.compile(r"""(?<![^\s(\[{])(?:(@)(?!["'])|(?!["'(\[{@]))(\S*)\Z""")
_PATHS = ("/", "~", "./", "../")
_HARMLESS = frozenset({"Zs", "Mn"})  # odd spaces, variants of emoji: only hard to see


class Word(Value):
    """A word that ends at the cursor and may be the beginning of something."""

    length: int  # of the text that a completion replaces
    text: str  # without `@` and quotes
    mention: bool


class InputCompleter(Completer):
    """Completes the input. `commands` and `workspace` may be set at any time."""

    def __init__(
        self,
        workspace: Path,
        commands: Sequence[About] = (),
        spans: Spans = lambda text: (),
        files: Files | None = None,
    ) -> None:
        self.workspace = workspace
        self.commands = commands
        self._spans = spans
        self._files = files or Files()

    def get_completions(  # type: ignore[explicit-override]  # 3.12
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Return all completions; blocks on the disk."""
        return self._named(document) or self._found(self._words(document, complete_event))

    async def get_completions_async(  # type: ignore[explicit-override]  # 3.12
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the same, with the disk read in a thread, which is abandoned if it hangs."""
        found = self._named(document)
        if not found and (words := self._words(document, complete_event)):
            found = await to_thread.run_sync(self._found, words, abandon_on_cancel=True)
        for completion in found:
            yield completion

    def _named(self, document: Document) -> list[Completion]:
        """Return the commands that begin like the input; if none does, those with its letters."""
        if (typed := _COMMAND.fullmatch(document.text_before_cursor)) is None:
            return []
        wanted = typed[1].lower()
        about = [(name.removeprefix("/"), *rest) for name, *rest in self.commands]
        fitting = [one for one in about if one[0].startswith(wanted)]
        fitting = fitting or [one for one in about if _has(one[0], wanted)]
        return [_command(*one, typed=len(typed[0])) for one in sorted(fitting)]

    def _words(self, document: Document, event: CompleteEvent) -> list[Word]:
        """Return the words that may end at the cursor, likeliest first."""
        cursor, begin = document.cursor_position, 0
        for first, end in self._spans(document.text):
            if first < cursor <= end:
                return []
            if end <= cursor:
                begin = max(begin, end)
        line = document.text[begin:cursor].rpartition("\n")[2]
        return [
            word
            for word in _endings(line)
            if word.mention or (event.completion_requested and _is_path(word.text))
        ]

    def _found(self, words: list[Word]) -> list[Completion]:
        """Return the completions of the first of `words` that has any."""
        for word in words:
            find = self._files.below if word.mention else self._files.listed
            paths = [path for path in find(self.workspace, word.text) if _may_be_shown(path)]
            if offered := [one for path in paths for one in _offered(word, path)]:
                return offered
        return []


def _command(name: str, arguments: str, about: str, *, typed: int) -> Completion:
    return Completion(
        f"/{name} " if arguments else f"/{name}",
        start_position=-typed,
        display=reveal(f"/{name} {arguments}".rstrip()),
        display_meta=reveal(about),
    )


def _has(name: str, letters: str) -> bool:
    rest = iter(name)
    return all(letter in rest for letter in letters)


def _endings(line: str) -> Iterator[Word]:
    if found := _OPENED.search(line):
        text = found[2] if found[2] is not None else found[3]
        yield Word(len(found[0]), text, mention=bool(found[1]))
    if found := _BARE.search(line):
        yield Word(len(found[0]), found[2], mention=bool(found[1]))


def _is_path(text: str) -> bool:
    return text.startswith(_PATHS) or "/" in text


def _may_be_shown(path: str) -> bool:
    return all(not is_hidden(c) or unicodedata.category(c) in _HARMLESS for c in path)


def _offered(word: Word, path: str) -> Iterator[Completion]:
    """Yield the completion to `path`, unless it cannot be quoted."""
    written = quoted(path)
    if written is None:
        return
    yield Completion(
        f"@{written}" if word.mention else written,
        start_position=-word.length,
        display=reveal(path if word.mention else _last(path)),
    )


def _last(path: str) -> str:
    """Return the last name in `path`, with the slash of a directory."""
    return path[path.rfind("/", 0, -1) + 1 :]
