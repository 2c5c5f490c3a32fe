"""A regular expression engine without backtracking.

Python's `re` backtracks and holds the interpreter lock meanwhile: one pattern like `(a+)+$` from
a model would freeze the whole process, and no time limit could stop it. So a pattern is compiled
to a nondeterministic automaton, and that to a deterministic one, whose states are created when
the text needs them. The time grows with the length of the text, not with the number of possible
matches. In exchange, look-around, backreferences and possessive repeats are refused.

The syntax is that of `re`. The test of a single character (`\\w`, `[^a-z]`) is still done by `re`.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import assert_never

from holdfast.core.types import Value
from holdfast.errors import ToolFailed

MAX_PATTERN = 500  # characters
MAX_DEPTH = 40  # of nested groups
MAX_NODES = 1_000  # of the automaton; limits the cost of one step
MAX_CACHED = 200_000  # cached steps, and nodes in all cached states: limits the memory

Test = Callable[[str], object]


class Side(Enum):
    """The kind of character next to a position."""

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
    literal: str  # empty: a character class


class AnchorNode(Value):
    holds: Holds


class Sequence(Value):
    items: tuple["Tree", ...]


class ChoiceNode(Value):
    options: tuple["Tree", ...]


class Repeat(Value):
    item: "Tree"
    least: int
    most: int | None


Tree = Char | AnchorNode | Sequence | ChoiceNode | Repeat

_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|0[0-7]{0,2}|.)", re.S)
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>)?")
_SET = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.S)
_TOO_BIG = "This pattern is too big to search with; use a shorter one."


class _Parser:
    """Parses a pattern to a tree. Raises `re.error` where `re` would."""

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
        return options[0] if len(options) == 1 else ChoiceNode(tuple(options))

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
        if isinstance(item, AnchorNode):
            raise re.error("nothing to repeat", self._text, self._at)
        if self._take("+"):
            raise ToolFailed("Possessive repeats are not supported here; leave out the second '+'.")
        self._take("?")  # a lazy repeat matches the same lines
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
            return AnchorNode(_ANCHORS[char])
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
        return Sequence((tree,))  # (^)* is allowed, ^* is not

    def _escape(self) -> Tree:
        text = self._match(_ESCAPE)
        if text in _ANCHORS:
            return AnchorNode(_ANCHORS[text])
        if text[1] in "123456789":
            raise ToolFailed("Backreferences are not supported in a search pattern; remove them.")
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
    """Builds the automaton from the tree, from the end to the beginning."""

    def __init__(self) -> None:
        self.nodes: list[Node] = [Split(())]
        self._effort = 0

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def build(self, tree: Tree, then: int) -> int:
        """Add nodes that match `tree` and continue at `then`; return the first node."""
        self._effort += 1  # also counts empty groups, which add no node
        if self._effort > 4 * MAX_NODES or len(self.nodes) > MAX_NODES:
            raise ToolFailed(_TOO_BIG)
        match tree:
            case Char(test, _):
                return self._add(Step(test, then))
            case AnchorNode(holds):
                return self._add(If(holds, then))
            case Sequence(items):
                for item in reversed(items):
                    then = self.build(item, then)
                return then
            case ChoiceNode(options):
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
    """The possible nodes of the automaton, the character before, and the cached next states."""

    __slots__ = ("alive", "before", "known")

    def __init__(self, alive: frozenset[int], before: Side) -> None:
        self.alive = alive
        self.before = before
        self.known: dict[str, _State] = {}


_FOUND = _State(frozenset(), Side.EDGE)


class Pattern:
    """A compiled pattern that finds matches in single lines. Not thread-safe."""

    def __init__(self, tree: Tree) -> None:
        builder = _Builder()
        self._begin = builder.build(tree, _END)
        self._nodes = builder.nodes
        self.required = _required(tree)
        """Every match contains this text. Checking for it first is fast."""
        self.effort = 0
        """The cost of the search so far; 1 is one character with a cached step."""
        self._forget()

    def _forget(self) -> None:
        self._states: dict[tuple[frozenset[int], Side], _State] = {}
        self._cached = 0
        self._start = self._state(frozenset((self._begin,)), Side.EDGE)

    def find(self, line: str) -> int | None:
        """Return the end of the match that ends first in `line`, or None."""
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
        if (alive, before) not in self._states:
            self._states[alive, before] = _State(alive, before)
            self._cached += len(alive)
        return self._states[alive, before]


def _required(tree: Tree) -> str:
    """Return the longest sequence of literal characters that every match contains."""
    best = run = ""
    for item in tree.items if isinstance(tree, Sequence) else (tree,):
        run = run + item.literal if isinstance(item, Char) and item.literal else ""
        best = max(best, run, key=len)
    return best


def regex(text: str) -> Pattern:
    """Compile a regular expression; raises `re.error` if `text` is not one."""
    if len(text) > MAX_PATTERN:
        raise ToolFailed(_TOO_BIG)
    return Pattern(_Parser(text).parse())


def literal(text: str) -> Pattern:
    """Create a pattern that finds `text` literally."""
    if len(text) > MAX_PATTERN:
        raise ToolFailed(_TOO_BIG)
    return Pattern(Sequence(tuple(Char(char.__eq__, char) for char in text)))
