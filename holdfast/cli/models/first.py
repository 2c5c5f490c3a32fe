"""The first start on a machine without a model: fetch the built-in one, or ask whether to.

`make run` fetches it (HOLDFAST_PULL=1). At a terminal a plain `holdfast` asks. Elsewhere nothing is
fetched. Whatever happens here, the conversation starts: without a model it is `offline`.
"""

import sys

import anyio

from holdfast.app.resolve import resolve
from holdfast.cli.exits import Exit
from holdfast.cli.models import pull
from holdfast.cli.output import note, tell
from holdfast.config import process as settings
from holdfast.config.program import typed
from holdfast.config.settings import Config
from holdfast.host.lock import is_locked

QUESTION = "No model is configured. Fetch {}? It works without a network afterwards. [Y/n] "
WITHOUT = "Going on without a model: only plain commands work. To fetch one later: {}"


def offer(config: Config) -> None:
    """Fetch the built-in model, if no model is to be found and the user wants it."""
    wanted = settings.wants_pull()
    can_ask = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if wanted is False or (wanted is None and not can_ask) or is_locked(config.home):
        return
    if not anyio.run(resolve, config).is_open:
        return
    if wanted or _agrees():
        try:
            pull.fetch(config.home)
            return
        except Exit as failed:
            note(f"holdfast: {failed}")
    note(WITHOUT.format(f"{typed()} {pull.AGAIN}"))


def _agrees() -> bool:
    tell(QUESTION.format(pull.describe()))
    try:
        return sys.stdin.readline().strip().lower() in ("", "y", "yes")
    except KeyboardInterrupt:
        tell("\n")
        return False
