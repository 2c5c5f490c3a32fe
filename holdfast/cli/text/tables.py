"""A table of markdown as rows of a terminal: columns that fit the width, or records.

Columns get what they need; where that is too much, the widest give way first and their cells
are wrapped. Where a column would become too narrow to read, every row of the table is told as
a record, `header: cell` below each other.
"""

import re
from collections.abc import Sequence
from itertools import zip_longest

from holdfast.cli.rows import BOLD, DIM, PLAIN, Prose, Row, Span, columns
from holdfast.cli.spans import Paper, spans

_NARROWEST = 8  # columns that a column must have if it needs them
_BETWEEN, _CROSSING = " │ ", "─┼─"
_RULE = re.compile(r"\|?(?: *:?-+:? *\|)+(?: *:?-+:?)? *|\|(?: *:?-+:?) *")
_BAR = re.compile(r"(?<!\\)\|")
_BREAK = re.compile(r"<br */?>", re.IGNORECASE)

Cell = Sequence[Span]


def is_table(header: str, rule: str) -> bool:
    """Whether the two lines begin a table."""
    found = _RULE.fullmatch(rule.strip())
    return found is not None and len(_cells(header)) == len(_cells(rule))


def table(lines: Sequence[str], width: int, paper: Paper) -> list[Row]:
    """The header, the rule and the rows of a table as rows of the terminal."""
    texts = [_cells(line) for line in lines]
    count = max(map(len, texts))
    aligned = [_alignment(cell) for cell in texts.pop(1)]
    aligned += [""] * (count - len(aligned))
    head = [spans(cell, paper, BOLD) for cell in texts[0]]
    body = [[spans(cell, paper) for cell in row] for row in texts[1:]]
    rows = [_filled(row, count) for row in (head, *body)]
    needs = [max(1, *map(_columns, column)) for column in zip(*rows, strict=True)]
    words = [max(map(_longest_word, column)) for column in zip(*rows, strict=True)]
    if widths := _fitted(needs, words, width - len(_BETWEEN) * (count - 1)):
        return _grid(rows, widths, aligned)
    return _records(rows, width)


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    cells = _BAR.split(inner)
    if len(cells) > 1 and not cells[-1].strip():
        cells.pop()
    return [_BREAK.sub("\n", cell.strip().replace("\\|", "|")) for cell in cells]


def _filled(row: list[list[Span]], count: int) -> list[Cell]:
    return [*row, *([Span("")] for _ in range(count - len(row)))]


def _alignment(cell: str) -> str:
    """`^`, `>` or nothing, as the rule says it with its colons."""
    if not cell.endswith(":"):
        return ""
    return "^" if cell.startswith(":") else ">"


def _columns(cell: Cell) -> int:
    return max(columns(line) for line in _text(cell).split("\n"))


def _longest_word(cell: Cell) -> int:
    """Where wide characters stand, a row may end anywhere: they make no long words."""
    words = _text(cell).split()
    return max((len(word) for word in words if columns(word) == len(word)), default=_NARROWEST)


def _text(cell: Cell) -> str:
    return "".join(span.text for span in cell)


def _fitted(needs: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """The columns' widths, together no more than `room`; none if it is too little.

    No column is narrower than its longest word if that can be had, else than _NARROWEST.
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
    told = [_told(row, widths, aligned) for row in rows]
    loose = any(len(lines) > 1 for lines in told[1:])
    out: list[Row] = [*told[0], [crossing]]
    for number, lines in enumerate(told[1:]):
        if number and loose:
            out.append([crossing])
        out += lines
    return out


def _told(row: list[Cell], widths: list[int], aligned: list[str]) -> list[Row]:
    """One row of the table, as many rows high as its highest cell."""
    cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    out: list[Row] = []
    for line in zip_longest(*cells, fillvalue=[Span("")]):
        told: list[Span] = []
        for at, cell in enumerate(line):
            told += [Span(_BETWEEN, DIM)] if at else []
            told += _placed(cell, widths[at], aligned[at])
        out.append(told)
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
