"""The facts about a full context window: the model's limit was met, or the history was compacted."""

from holdfast.core.types import Fact, RunId, Usage


class ContextExceeded(Fact, tag="model.context_exceeded"):
    """The model's server refused the request of this turn, because it was too long."""

    run_id: RunId
    turn: int
    error: str


class HistoryCompacted(Fact, tag="session.compacted", omit_defaults=True):
    """From here on the model reads `summary` in place of the first messages.

    Positions count the messages since the last reset. The journal keeps all of them, and people
    still read them: only what the model sees gets shorter.
    """

    upto: int  # the summary stands for the messages before this position
    summary: str
    reason: str  # "full", "overflow" or "asked"
    run_id: RunId = RunId("")  # the run that needed it; empty: a user asked for it
    shortened: int = 0  # the results of calls before this position are shortened
    limit: int = 0  # to so many characters each
    model: str = ""  # that wrote the summary; empty: made by rule
    usage: Usage = Usage()  # of writing it
