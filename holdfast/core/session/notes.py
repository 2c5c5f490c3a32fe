"""Notes of the gateway to the model, which stand before the message that a run reads next."""

from collections.abc import Collection

from holdfast.core.run.run import CutCause

_CAUSES: dict[str, str] = {
    CutCause.RESTART: "gateway restart",
    CutCause.SHUTDOWN: "gateway shutdown",
    CutCause.TERMINAL: "gateway shutdown",
    CutCause.CRASH: "gateway interruption",
}


def resume_note(cause: str) -> str:
    """Return the note to the model when a run goes on after `cause` cut it."""
    what = _CAUSES.get(cause, "gateway interruption")
    return (
        f"[System note: Your previous turn was cut by a {what}. The history above is intact. "
        "If tool results are unfinished or unknown, deal with those first, then go on with the "
        "task where it stopped.]"
    )


def died_note(died: Collection[str]) -> str:
    """Return the note to the model about processes that died with the gateway; empty: none."""
    if not died:
        return ""
    return (
        "[System note: The gateway was restarted, and these background processes died with it: "
        f"{'; '.join(died)}. Start again what is still needed.]"
    )


RESULTS_NOTE = (
    "[System note: The conversation above ends with tool results that were not answered. "
    "Read each tool result, then turn to the message below.]"
)
