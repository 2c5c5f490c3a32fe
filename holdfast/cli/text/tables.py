"""Draw a Markdown table as rows of a terminal: columns that fit the width, or records.

Columns get the width they need; where that is too much, the widest give way first and their cells
are wrapped. Where a column would become too narrow to read, every row of the table is drawn as
a record, `header: cell` below each other.
"""

from collections.abc import Sequence
from itertools import zip_longest

from holdfast.cli.text.wrap import BOLD, DIM, PLAIN, Prose, Row, Span
from holdfast.core.text.width import columns

_NARROWEST = 8  # columns that a column must have if it needs them
_BETWEEN, _CROSSING = " │ ", "─┼─"

Cell = Sequence[Span]


def draw_table(
    cells: Sequence[list[list[Span]]], alignment: Sequence[str], width: int
) -> list[Row]:
    """Draw the rows of a table, the first of which is its header."""
    count = max(map(len, cells))
    aligned = [*alignment, *[""] * (count - len(alignment))]
    rows = [_filled(row, count) for row in cells]
    needs = [max(1, *map(_columns, column)) for column in zip(*rows, strict=True)]
    words = [max(map(_longest_word, column)) for column in zip(*rows, strict=True)]
    if widths := _fitted(needs, words, width - len(_BETWEEN) * (count - 1)):
        return _grid(rows, widths, aligned)
    return _records(rows, width)


def _filled(row: list[list[Span]], count: int) -> list[Cell]:
    return [*row, *([Span("")] for _ in range(count - len(row)))]


def _columns(cell: Cell) -> int:
    return max(columns(line) for line in _text(cell).split("\n"))


def _longest_word(cell: Cell) -> int:
    """Measure the longest word; a row may end anywhere in wide text, so that does not count."""
    words = _text(cell).split()
    return max((len(word) for word in words if columns(word) == len(word)), default=_NARROWEST)


def _text(cell: Cell) -> str:
    return "".join(span.text for span in cell)


def _fitted(needs: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """Return the columns' widths, together no more than `room`; empty if that is too little.

    No column is narrower than its longest word if possible, else than _NARROWEST.
    """
    for floors in (words, [_NARROWEST] * len(needs)):
        least = [min(need, floor) for need, floor in zip(needs, floors, strict=True)]
        if sum(least) <= room:
            break
    else:
        return []
    low, high = 0, max(needs)  # the widest limit that fits is between them
    while low < high:
        limit = (low + high + 1) // 2
        fits = sum(_limited(needs, least, limit)) <= room
        low, high = (limit, high) if fits else (low, limit - 1)
    widths = _limited(needs, least, low)
    spare = room - sum(widths)
    for at, need in enumerate(needs):
        if need > widths[at] and spare:
            widths[at], spare = widths[at] + 1, spare - 1
    return widths


def _limited(needs: Sequence[int], least: Sequence[int], limit: int) -> list[int]:
    return [min(need, max(own, limit)) for need, own in zip(needs, least, strict=True)]


def _grid(rows: list[list[Cell]], widths: list[int], aligned: list[str]) -> list[Row]:
    crossing = Span(_CROSSING.join("─" * width for width in widths), DIM)
    drawn = [_drawn(row, widths, aligned) for row in rows]
    loose = any(len(lines) > 1 for lines in drawn[1:])
    out: list[Row] = [*drawn[0], [crossing]]
    for number, lines in enumerate(drawn[1:]):
        if number and loose:
            out.append([crossing])
        out += lines
    return out


def _drawn(row: list[Cell], widths: list[int], aligned: list[str]) -> list[Row]:
    """Draw one row of the table, as high as its highest cell."""
    cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    out: list[Row] = []
    for line in zip_longest(*cells, fillvalue=[Span("")]):
        drawn: list[Span] = []
        for at, cell in enumerate(line):
            drawn += [Span(_BETWEEN, DIM)] if at else []
            drawn += _placed(cell, widths[at], aligned[at])
        out.append(drawn)
    return out


def _wrapped(cell: Cell, width: int) -> list[Row]:
    prose = Prose(width)
    return [*prose.write(cell), *prose.close()]


def _placed(cell: Row, width: int, aligned: str) -> list[Span]:
    spare = max(width - sum(columns(span.text) for span in cell), 0)
    before = {"": 0, "^": spare // 2, ">": spare}[aligned]
    return [Span(" " * before), *cell, Span(" " * (spare - before))]


def _records(rows: list[list[Cell]], width: int) -> list[Row]:
    head, *body = rows
    if not body:
        return [row for cell in head for row in _wrapped(cell, width)]
    out: list[Row] = []
    for number, row in enumerate(body):
        out += [[]] if number else []
        for name, cell in zip(head, row, strict=True):
            named = [*name, Span(": ", BOLD)] if _columns(name) else []
            if named or _columns(cell):
                out += _wrapped([*named, *(cell or [Span("", PLAIN)])], width)
    return out
