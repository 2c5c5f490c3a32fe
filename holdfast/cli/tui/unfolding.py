"""Ctrl-O: choose a call of the session and see all of it, or see the whole question.

The list and the text come from the server: the terminal keeps only the lines it has printed.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import anyio

from holdfast.api.schema.events import Event
from holdfast.api.schema.sessions import MessageObject
from holdfast.cli.client.client import Client
from holdfast.cli.exits import Exit
from holdfast.cli.tui import pager, transcript
from holdfast.cli.tui.ui import Ui
from holdfast.cli.tui.unfold import changes
from holdfast.cli.tui.unfold.chooser import Chooser, ListedCall

PATIENCE_S = 2.0  # for diffs; without them the files are listed
NO_CALL = "no tool has been called yet"


class HasSession(Protocol):
    """The conversation, as far as this needs it."""

    client: Client
    ui: Ui
    session_id: str
    known: bool


class Unfolding:
    """Shows in full what the screen shows in short."""

    def __init__(self, talk: HasSession) -> None:
        self._talk = talk

    async def learn(self, event: Event) -> None:
        """Fetch the diffs of a call that ends, so that they are shown below its line."""
        talk = self._talk
        if talk.ui.view.changes_of(event):
            with anyio.move_on_after(PATIENCE_S), suppress(Exit):
                found = await talk.client.diff(talk.session_id, call_id=event.call_id)
                talk.ui.view.diffs = found.data

    async def begin(self) -> None:
        """Show the whole question; without one, offer the calls of the session."""
        ui = self._talk.ui
        if ui.asked is not None:
            return await pager.page(ui, ui.unfolded())
        entries = [
            *(
                ListedCall(call.id, line)
                for call, line in transcript.calls(ui.view, await self._read())
            ),
            *(ListedCall(call.call_id, ui.view.in_short(call)) for call in ui.view.active),
        ]
        if not entries:
            return ui.hint(NO_CALL)
        return ui.choose(Chooser(entries))

    async def open(self, call_id: str) -> None:
        """Show all of a call: arguments, result, changed files."""
        ui = self._talk.ui
        if (active := ui.view.details(call_id)) is not None:
            return await pager.page(ui, active)
        lines = transcript.unfolded(ui.view, await self._read(), call_id)
        found = await self._talk.client.diff(self._talk.session_id, call_id=call_id)
        return await pager.page(ui, [*lines, *changes.whole(ui.style, found.data)])

    async def _read(self) -> Sequence[MessageObject]:
        talk = self._talk
        return await talk.client.transcript(talk.session_id) if talk.known else ()
