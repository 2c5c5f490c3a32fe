"""The tasks: data files, and the checks of what a model left behind."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

TASKS = Path(__file__).parent / "tasks"


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be true afterwards. Files that are not named here must be unchanged."""

    answer: tuple[str, ...] = ()  # patterns that must all be found in the answer
    answer_lacks: tuple[str, ...] = ()  # patterns that must not be found in it
    files: dict[str, str] = {}  # path → a pattern that the whole file matches
    gone: tuple[str, ...] = ()  # paths that must not exist any more
    folders: tuple[str, ...] = ()  # folders that must exist


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task."""

    id: str
    ask: str
    files: dict[str, str] = {}  # path → content, before
    expect: Expected = Expected()
    held_out: bool = False  # not used while a prompt or protocol is tuned

    def prepare(self, folder: Path) -> None:
        """Write the task's files."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")

    def problems(self, folder: Path, answer: str) -> Iterator[str]:
        """Yield what is wrong; nothing if the task was done."""
        for pattern in self.expect.answer:
            if not re.search(pattern, answer, re.IGNORECASE):
                yield f"the answer lacks {pattern}"
        for pattern in self.expect.answer_lacks:
            if re.search(pattern, answer, re.IGNORECASE):
                yield f"the answer has {pattern}"
        yield from self._wrong_files(folder)

    def _wrong_files(self, folder: Path) -> Iterator[str]:
        expect = self.expect
        unchanged = {name: re.escape(content) for name, content in self.files.items()}
        for name, pattern in (unchanged | expect.files).items():
            content = _content(folder / name)
            if name not in expect.gone and not re.fullmatch(pattern, content or ""):
                yield f"{name} is missing" if content is None else f"{name} is {content[:80]!r}"
        for name in expect.gone:
            if (folder / name).exists():
                yield f"{name} is still there"
        for name in expect.folders:
            if not (folder / name).is_dir():
                yield f"the folder {name} is missing"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    task: tuple[Task, ...]


def load(folder: Path = TASKS) -> list[Task]:
    """Read all tasks."""
    found: list[Task] = []
    for path in sorted(folder.glob("*.toml")):
        found.extend(msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File).task)
    return found


def _content(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None
