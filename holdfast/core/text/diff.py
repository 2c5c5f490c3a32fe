"""The difference between two versions of a file: line counts, and a diff as git writes it. Pure.

Every input is handled in bounded time and memory, because a model or a command may write anything.
What both versions have at their beginning and at their end is left out first, by bytes. The rest is
compared by lines: lines that occur once in both versions are anchors (patience diff), and the small
blocks between them are compared exactly. If the rest is too big, or the work exceeds its budget,
a block counts as replaced: the diff is still right, but not the shortest.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.core.types import Value

CONTEXT = 3  # unchanged lines around a change
MAX_TEXT = 256 * 1024  # characters of one diff
MAX_LINE = 2_000  # characters of one line in it
MAX_BYTES = 16 * 1024 * 1024  # of each version's part that differs; more is not compared by lines
MAX_LINES = 200_000  # likewise, of both versions
MAX_WORK = 2_000_000  # comparisons of lines; about 0.3 s
SNIFF = 8_000  # a file is binary if one of its first bytes is NUL

NO_LINE_END = "\\ No newline at end of file\n"
CUT = "…"

Pair = tuple[int, int]  # a line of the old and the same line of the new version
Block = tuple[int, int, int, int]  # a, b, c, d: old[a:b] becomes new[c:d]


class LineCounts(Value):
    """The number of lines that a change added and removed; none if it is binary."""

    added: int = 0
    removed: int = 0
    binary: bool = False


class Diff(Value):
    """The difference as text, and its counts."""

    text: str
    counts: LineCounts
    cut: bool = False  # the text does not have the whole change


class Version(Value):
    """One version of a file: its content and its st_mode; no content: there is no file."""

    content: bytes | None = None
    mode: int = 0


class _Compared(Value):
    """The parts of both versions that differ, by lines, with context around them."""

    counts: LineCounts
    first: int = 0  # the number of lines before them
    old: Sequence[bytes] = ()
    new: Sequence[bytes] = ()
    blocks: Sequence[Block] = ()  # none, if the parts are too big


def count(before: bytes | None, after: bytes | None) -> LineCounts:
    """Count the lines that were added and removed."""
    old, new = before or b"", after or b""
    if _is_binary(old) or _is_binary(new):
        return LineCounts(binary=True)
    return _compare(old, new).counts


def unified(path: str, before: Version, after: Version, room: int = MAX_TEXT) -> Diff:
    """Return the unified diff of a file, of at most about `room` characters."""
    old, new = before.content or b"", after.content or b""
    head = _head(path, before, after)
    a, b = _name("a", path, before), _name("b", path, after)
    if old == new:
        return Diff(head, LineCounts())
    if _is_binary(old) or _is_binary(new):
        return Diff(f"{head}Binary files {a} and {b} differ\n", LineCounts(binary=True))
    compared = _compare(old, new)
    if not compared.blocks:
        return Diff(head, compared.counts, cut=True)
    text, cut = _joined(_hunks(compared), room - len(head))
    return Diff(f"{head}--- {a}\n+++ {b}\n{text}", compared.counts, cut)


def _is_binary(content: bytes) -> bool:
    return b"\0" in content[:SNIFF]


def _head(path: str, before: Version, after: Version) -> str:
    head = f"diff --git {_quoted(f'a/{path}')} {_quoted(f'b/{path}')}\n"
    if before.content is None:
        return f"{head}new file mode {after.mode:06o}\n"
    if after.content is None:
        return f"{head}deleted file mode {before.mode:06o}\n"
    if before.mode != after.mode:
        return f"{head}old mode {before.mode:06o}\nnew mode {after.mode:06o}\n"
    return head


def _name(side: str, path: str, version: Version) -> str:
    return "/dev/null" if version.content is None else _quoted(f"{side}/{path}")


def _quoted(name: str) -> str:
    if name.isprintable() and not {'"', "\\"} & set(name):
        return name
    escaped = name.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{escaped}"'


def _line_count(part: bytes) -> int:
    return part.count(b"\n") + (part[-1:] not in (b"", b"\n"))


def _compare(old: bytes, new: bytes) -> _Compared:
    a, b, start = _differing(old, new, CONTEXT)
    if max(len(a), len(b)) > MAX_BYTES or a.count(b"\n") + b.count(b"\n") > MAX_LINES:
        a, b, _ = _differing(old, new, 0)
        return _Compared(LineCounts(_line_count(b), _line_count(a)))
    x, y = _lines(a), _lines(b)
    blocks = list(_blocks(x, y))
    added = sum(last - first for _, _, first, last in blocks)
    removed = sum(last - first for first, last, _, _ in blocks)
    return _Compared(LineCounts(added, removed), old.count(b"\n", 0, start), x, y, blocks)


def _differing(old: bytes, new: bytes, context: int) -> tuple[bytes, bytes, int]:
    """Return the parts that differ, in whole lines with context, and where they start."""
    start = old.rfind(b"\n", 0, _same_start(old, new)) + 1
    same = _same_end(old, new, start)
    ends = len(old) - same, len(new) - same
    if any(end > start and text[end - 1] != 10 for text, end in ((old, ends[0]), (new, ends[1]))):
        line_end = old.find(b"\n", ends[0])  # inside of a line: it differs too
        same = 0 if line_end < 0 else len(old) - line_end - 1
    for _ in range(context):
        start = old.rfind(b"\n", 0, max(start - 1, 0)) + 1
        line_end = old.find(b"\n", len(old) - same)
        same = 0 if line_end < 0 else len(old) - line_end - 1
    return old[start : len(old) - same], new[start : len(new) - same], start


def _same_start(old: bytes, new: bytes) -> int:
    """Return how many bytes both have in common at their beginning."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _same_end(old: bytes, new: bytes, start: int) -> int:
    """Return how many bytes both have in common at their end, after `start`."""
    low, high = 0, min(len(old), len(new)) - start
    while low < high:
        middle = (low + high + 1) // 2
        a, b = len(old) - middle, len(new) - middle
        if old[a : len(old) - low] == new[b : len(new) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _lines(part: bytes) -> list[bytes]:
    """Split into lines with their ends; only `\\n` ends a line."""
    *whole, last = part.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, last] if last else lines


def _blocks(old: list[bytes], new: list[bytes]) -> Iterator[Block]:
    a = b = 0
    for x, y in [*_pairs(old, new), (len(old), len(new))]:
        if x > a or y > b:
            yield a, x, b, y
        a, b = x + 1, y + 1


def _pairs(old: list[bytes], new: list[bytes]) -> list[Pair]:
    """Return the lines that stay, in order."""
    ids: dict[bytes, int] = {}
    a = [ids.setdefault(line, len(ids)) for line in old]
    b = [ids.setdefault(line, len(ids)) for line in new]
    found: list[Pair] = []
    work = MAX_WORK
    todo = [(0, len(a), 0, len(b))]
    while todo:
        a0, a1, b0, b1 = todo.pop()
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            found.append((a0, b0))
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            found.append((a1, b1))
        size = (a1 - a0) * (b1 - b0)
        work -= a1 - a0 + b1 - b0
        if not size or work < 0:
            continue
        if anchors := _anchors(a[a0:a1], b[b0:b1]):
            for x, y in anchors:
                found.append((a0 + x, b0 + y))
            places = [(-1, -1), *anchors, (a1 - a0, b1 - b0)]
            for (x0, y0), (x1, y1) in zip(places, places[1:], strict=False):
                todo.append((a0 + x0 + 1, a0 + x1, b0 + y0 + 1, b0 + y1))
        elif size <= work:
            work -= size
            found += [(a0 + x, b0 + y) for x, y in _longest(a[a0:a1], b[b0:b1])]
    return sorted(found)


def _anchors(a: list[int], b: list[int]) -> list[Pair]:
    """Return the lines that occur once in both, as many as are in the same order."""
    in_a, in_b = Counter(a), Counter(b)
    where = {line: y for y, line in enumerate(b) if in_b[line] == 1}
    both = [(x, where[n]) for x, n in enumerate(a) if in_a[n] == 1 and n in where]
    return _rising(both)


def _rising(pairs: list[Pair]) -> list[Pair]:
    """Return the longest part of `pairs` whose second numbers rise too."""
    ends: list[int] = []  # the smallest last number of a rising part of each length
    at: list[int] = []  # its place in `pairs`
    before: list[int] = []
    for place, (_, y) in enumerate(pairs):
        length = bisect_left(ends, y)
        before.append(at[length - 1] if length else -1)
        if length == len(ends):
            ends.append(y)
            at.append(place)
        else:
            ends[length], at[length] = y, place
    found: list[Pair] = []
    last = at[-1] if at else -1
    while last >= 0:
        found.append(pairs[last])
        last = before[last]
    return found[::-1]


def _longest(a: list[int], b: list[int]) -> list[Pair]:
    """Return the longest common subsequence, by the table of all lengths."""
    table = [[0] * (len(b) + 1)]
    for x in a:
        above, row = table[-1], [0]
        for y, line in enumerate(b):
            up, left = above[y + 1], row[y]
            row.append(above[y] + 1 if x == line else up if up > left else left)
        table.append(row)
    found: list[Pair] = []
    x, y = len(a), len(b)
    while table[x][y]:
        if a[x - 1] == b[y - 1]:
            x, y = x - 1, y - 1
            found.append((x, y))
        elif table[x - 1][y] >= table[x][y - 1]:
            x -= 1
        else:
            y -= 1
    return found


def _hunks(compared: _Compared) -> Iterator[str]:
    """Yield the lines of the diff."""
    group: list[Block] = []
    for block in compared.blocks:
        if group and block[0] - group[-1][1] > 2 * CONTEXT:
            yield from _hunk(compared, group)
            group = []
        group.append(block)
    yield from _hunk(compared, group)


def _hunk(compared: _Compared, group: list[Block]) -> Iterator[str]:
    old, new = compared.old, compared.new
    a = max(group[0][0] - CONTEXT, 0)
    c = group[0][2] - (group[0][0] - a)
    b = min(group[-1][1] + CONTEXT, len(old))
    d = group[-1][3] + (b - group[-1][1])
    yield f"@@ -{_range(compared.first + a, b - a)} +{_range(compared.first + c, d - c)} @@\n"
    at = a
    for x0, x1, y0, y1 in group:
        yield from _marked(" ", old[at:x0])
        yield from _marked("-", old[x0:x1])
        yield from _marked("+", new[y0:y1])
        at = x1
    yield from _marked(" ", old[at:b])


def _range(start: int, length: int) -> str:
    first = start + 1 if length else start
    return f"{first}" if length == 1 else f"{first},{length}"


def _marked(mark: str, lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        text = line[: 4 * MAX_LINE + 4].decode(errors="replace")
        if len(text) > MAX_LINE:
            yield f"{mark}{text[:MAX_LINE]}{CUT}\n"
        elif text.endswith("\n"):
            yield mark + text
        else:
            yield f"{mark}{text}\n{NO_LINE_END}"


def _joined(lines: Iterator[str], room: int) -> tuple[str, bool]:
    """Join lines while there is room; tell if one was cut or left out."""
    taken: list[str] = []
    cut = False
    for line in lines:
        room -= len(line)
        if room < 0:
            return "".join(taken), True
        cut = cut or line.endswith(f"{CUT}\n") and len(line) > MAX_LINE
        taken.append(line)
    return "".join(taken), cut
