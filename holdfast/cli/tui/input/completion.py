"""What may be meant by the beginning of a word: a command, a file of the workspace, a path.

`/` at the very beginning of the input is a command. `@` at a word's beginning is a file or a
directory below the workspace, found by a few of its letters. A word that looks like a path is
completed as a shell would, and only when asked with Tab: paths are typed in passing, too.

A name with spaces or quotes comes in quotes. A mention stays in the input as it stands here:
`@"my notes.txt"` says exactly which file is meant, and the agent has tools to read it.

Names are the disk's, and whoever wrote them need not be a friend. What hides in one is shown
escaped. One that could steer a terminal is not offered at all: put into the input as it is it
would, and escaped it would be the name of nothing.
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
_HARMLESS = frozenset({"Zs", "Mn"})  # odd spaces, variants of a picture: no more than hard to see


class Word(Value):
    """A word that ends at the cursor and may be the beginning of something."""

    length: int  # of all that a completion takes the place of
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
        """All there is, whatever time it takes."""
        return self._named(document) or self._found(self._words(document, complete_event))

    async def get_completions_async(  # type: ignore[explicit-override]  # 3.12
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """The same, with the disk asked in a thread."""
        found = self._named(document)
        if not found and (words := self._words(document, complete_event)):
            # Nobody waits for a disk that does not answer.
            found = await to_thread.run_sync(self._found, words, abandon_on_cancel=True)
        for completion in found:
            yield completion

    def _named(self, document: Document) -> list[Completion]:
        """The commands that begin like the input; if none does, those with its letters."""
        if (typed := _COMMAND.fullmatch(document.text_before_cursor)) is None:
            return []
        wanted = typed[1].lower()
        about = [(name.removeprefix("/"), *rest) for name, *rest in self.commands]
        fitting = [one for one in about if one[0].startswith(wanted)]
        fitting = fitting or [one for one in about if _has(one[0], wanted)]
        return [_command(*one, typed=len(typed[0])) for one in sorted(fitting)]

    def _words(self, document: Document, event: CompleteEvent) -> list[Word]:
        """What the end of the text before the cursor may be the beginning of, likeliest first."""
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
        """What there is for the first of `words` that there is something for."""
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
    """The completion to `path`, unless no quotes can hold it."""
    written = quoted(path)
    if written is None:
        return
    yield Completion(
        f"@{written}" if word.mention else written,
        start_position=-word.length,
        display=reveal(path if word.mention else _last(path)),
    )


def _last(path: str) -> str:
    """The last name in `path`, with the slash of a directory."""
    return path[path.rfind("/", 0, -1) + 1 :]
