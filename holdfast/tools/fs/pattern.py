"""A regular expression that cannot hang.

Python's `re` backtracks, and holds the interpreter's lock while it does: one pattern like
`(a+)+$` from a model would freeze the whole process, and no deadline could end it. So a
pattern becomes a nondeterministic automaton here, and the automaton a deterministic one,
made state by state as the text needs it: time grows with the text, never with the ways to
match it. The price is look-around, backreferences and possessive repeats: they are refused.

The syntax is that of `re`. One character's test (`\\w`, `[^a-z]`) is still made by `re`.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import assert_never

from holdfast.core.types import Value
from holdfast.errors import ToolFailed

MAX_PATTERN = 500  # characters
MAX_DEPTH = 40  # of groups
MAX_NODES = 1_000  # of the automaton; what one step may cost
MAX_CACHED = 20_000  # steps remembered

Test = Callable[[str], object]


class Side(Enum):
    """What lies beside a position."""

    EDGE = 0
    WORD = 1
    OTHER = 2


def _side(char: str) -> Side:
    if not char:
        return Side.EDGE
    return Side.WORD if char == "_" or char.isalnum() else Side.OTHER


Holds = Callable[[Side, Side], bool]

_ANCHORS: dict[str, Holds] = {
    "^": lambda before, after: before is Side.EDGE,
    "\\A": lambda before, after: before is Side.EDGE,
    "$": lambda before, after: after is Side.EDGE,
    "\\Z": lambda before, after: after is Side.EDGE,
    "\\b": lambda before, after: (before is Side.WORD) != (after is Side.WORD),
    "\\B": lambda before, after: (before is Side.WORD) == (after is Side.WORD),
}


class Char(Value):
    test: Test
    literal: str  # empty: a class


class Anchor(Value):
    holds: Holds


class Sequence(Value):
    items: tuple["Tree", ...]


class Choice(Value):
    options: tuple["Tree", ...]


class Repeat(Value):
    item: "Tree"
    least: int
    most: int | None


Tree = Char | Anchor | Sequence | Choice | Repeat

_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|0[0-7]{0,2}|.)", re.S)
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>)?")
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.S)
_TOO_BIG = "This pattern is too big to search with; use a shorter one."


class _Parser:
    """Pattern text to tree; `re.error` where `re` would say so too."""

    def __init__(self, text: str) -> None:
        self._flags = re.IGNORECASE if text.startswith("(?i)") else re.NOFLAG
        self._text = text.removeprefix("(?i)")
        self._at = 0
        self._depth = 0

    def parse(self) -> Tree:
        tree = self._choice()
        if self._at < len(self._text):
            raise re.error("unbalanced parenthesis", self._text, self._at)
        return tree

    def _take(self, token: str) -> bool:
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _choice(self) -> Tree:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Tree:
        items: list[Tree] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            items.append(self._repeated())
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self) -> Tree:
        item = self._item()
        count = self._count()
        if count is None:
            return item
        if isinstance(item, Anchor):
            raise re.error("nothing to repeat", self._text, self._at)
        if self._take("+"):
            raise ToolFailed("Possessive repeats are not supported here; leave out the second '+'.")
        self._take("?")  # lazy or not, the same lines match
        if self._count() is not None:
            raise re.error("multiple repeat", self._text, self._at)
        return Repeat(item, *count)

    def _count(self) -> tuple[int, int | None] | None:
        for sign, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return count
        found = _COUNT.match(self._text, self._at)
        if not found or found[0] == "{}":
            return None
        self._at = found.end()
        if max(len(found[1]), len(found[3])) > 4:
            raise ToolFailed(_TOO_BIG)
        least = int(found[1] or 0)
        most = int(found[3]) if found[3] else None if found[2] else least
        if most is not None and most < least:
            raise re.error("min repeat greater than max repeat", self._text, self._at)
        return least, most

    def _item(self) -> Tree:
        char = self._text[self._at]
        if char == "(":
            return self._group()
        if char in "^$":
            self._at += 1
            return Anchor(_ANCHORS[char])
        if char in "*+?":
            raise re.error("nothing to repeat", self._text, self._at)
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._class(self._match(_SET))
        self._at += 1
        return self._class(".") if char == "." else self._literal(char)

    def _group(self) -> Tree:
        start = self._match(_GROUP)
        if start == "(" and self._take("?"):
            raise ToolFailed(
                "Look-around and special groups are not supported in a search pattern; "
                "use a plain group, or (?i) at the very beginning to ignore case."
            )
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ToolFailed(_TOO_BIG)
        tree = self._choice()
        if not self._take(")"):
            raise re.error("missing ), unterminated subpattern", self._text, self._at)
        self._depth -= 1
        return Sequence((tree,))  # so that (^)* may repeat where ^* may not

    def _escape(self) -> Tree:
        text = self._match(_ESCAPE)
        if text in _ANCHORS:
            return Anchor(_ANCHORS[text])
        if text[1] in "123456789":
            raise ToolFailed("Backreferences are not supported in a search pattern; do without.")
        return self._class(text) if text[1].isalnum() else self._literal(text[1])

    def _match(self, token: re.Pattern[str]) -> str:
        found = token.match(self._text, self._at)
        if not found:
            raise re.error("unterminated", self._text, self._at)
        self._at = found.end()
        return found[0]

    def _literal(self, char: str) -> Char:
        if self._flags:
            return self._class(re.escape(char))
        return Char(char.__eq__, char)

    def _class(self, text: str) -> Char:
        return Char(re.compile(text, self._flags).fullmatch, "")


class Step(Value):
    test: Test
    then: int


class If(Value):
    holds: Holds
    then: int


class Split(Value):
    ways: tuple[int, ...]


Node = Step | If | Split

_END = 0  # the node where a match is complete


class _Builder:
    """Tree to automaton, from the end to the beginning."""

    def __init__(self) -> None:
        self.nodes: list[Node] = [Split(())]
        self._effort = 0

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def build(self, tree: Tree, then: int) -> int:
        """Add what matches `tree` and goes on at `then`; where it begins."""
        self._effort += 1  # counts empty groups too, which add no node
        if self._effort > 4 * MAX_NODES or len(self.nodes) > MAX_NODES:
            raise ToolFailed(_TOO_BIG)
        match tree:
            case Char(test, _):
                return self._add(Step(test, then))
            case Anchor(holds):
                return self._add(If(holds, then))
            case Sequence(items):
                for item in reversed(items):
                    then = self.build(item, then)
                return then
            case Choice(options):
                return self._add(Split(tuple([self.build(o, then) for o in options])))
            case Repeat(item, least, most):
                return self._repeat(item, least, most, then)
            case _:
                assert_never(tree)

    def _repeat(self, item: Tree, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self._add(Split(()))
            self.nodes[loop] = Split((self.build(item, loop), then))
            then = loop
        else:
            for _ in range(most - least):
                then = self._add(Split((self.build(item, then), then)))
        for _ in range(least):
            then = self.build(item, then)
        return then


class _State:
    """Where the automaton may be, what came before, and the steps known from here."""

    __slots__ = ("alive", "before", "known")

    def __init__(self, alive: frozenset[int], before: Side) -> None:
        self.alive = alive
        self.before = before
        self.known: dict[str, _State] = {}


_FOUND = _State(frozenset(), Side.EDGE)


class Pattern:
    """Finds its matches in single lines. Not for two threads at once."""

    def __init__(self, tree: Tree) -> None:
        builder = _Builder()
        self._begin = builder.build(tree, _END)
        self._nodes = builder.nodes
        self.required = _required(tree)
        """Every match holds this text; looking for it first is quick."""
        self.effort = 0
        """What the search has cost so far, in characters of the easiest kind."""
        self._forget()

    def _forget(self) -> None:
        self._states: dict[tuple[frozenset[int], Side], _State] = {}
        self._cached = 0
        self._start = self._state(frozenset((self._begin,)), Side.EDGE)

    def find(self, line: str) -> int | None:
        """Where the first match that ends in `line` ends, or None."""
        if self.required not in line:
            return None
        self.effort += len(line)
        state = self._start
        for at, char in enumerate(line):
            state = state.known.get(char) or self._step(state, char)
            if state is _FOUND:
                return at
        return len(line) if self._step(state, "") is _FOUND else None

    def _step(self, state: _State, char: str) -> _State:
        if self._cached >= MAX_CACHED:
            self._forget()
        after = _side(char)
        todo = list(state.alive)
        seen = set(todo)
        moved = {self._begin}
        while todo:
            for way in self._ways(todo.pop(), state.before, after, char, moved):
                if way not in seen:
                    seen.add(way)
                    todo.append(way)
        self.effort += 4 * len(seen)
        found = _FOUND if _END in seen else self._state(frozenset(moved), after)
        state.known[char] = found
        self._cached += 1
        return found

    def _ways(
        self, at: int, before: Side, after: Side, char: str, moved: set[int]
    ) -> tuple[int, ...]:
        match self._nodes[at]:
            case Step(test, then):
                if char and test(char):
                    moved.add(then)
                return ()
            case If(holds, then):
                return (then,) if holds(before, after) else ()
            case Split(ways):
                return ways

    def _state(self, alive: frozenset[int], before: Side) -> _State:
        return self._states.setdefault((alive, before), _State(alive, before))


def _required(tree: Tree) -> str:
    """The longest run of plain characters that no match can do without."""
    best = run = ""
    for item in tree.items if isinstance(tree, Sequence) else (tree,):
        run = run + item.literal if isinstance(item, Char) and item.literal else ""
        best = max(best, run, key=len)
    return best


def regex(text: str) -> Pattern:
    """The pattern `text` says; `re.error` if it is not a regular expression."""
    if len(text) > MAX_PATTERN:
        raise ToolFailed(_TOO_BIG)
    return Pattern(_Parser(text).parse())


def literal(text: str) -> Pattern:
    """The pattern that finds `text` as it stands."""
    if len(text) > MAX_PATTERN:
        raise ToolFailed(_TOO_BIG)
    return Pattern(Sequence(tuple(Char(char.__eq__, char) for char in text)))
