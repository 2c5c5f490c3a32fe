"""The open questions of a session: approvals and questions to the user, oldest first.

The line mode and the full terminal ask them in their own ways (cli/run/ask.py,
cli/tui/questions.py). The events that open and close a question are the same for both.
"""

from collections.abc import Callable
from contextlib import aclosing

from anyio.abc import TaskGroup

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.api.schema.events import TERMINAL, Event
from holdfast.cli.client.client import Client
from holdfast.cli.client.frames import AskedQuestion, approval_of, question_of
from holdfast.cli.exits import Exit
from holdfast.cli.run import approval

Asked = ApprovalObject | AskedQuestion
Add = Callable[[Asked], bool]
Close = Callable[[str, str], bool]


class OpenQuestions:
    """The questions that wait for an answer, as the events of a run report them.

    `add` takes a new question, `close` the key of one that is closed and the reason; both return
    True if the event needs no line of its own.
    """

    def __init__(self, client: Client, add: Add, close: Close) -> None:
        self.open: dict[str, Asked] = {}
        self._client = client
        self._add, self._close = add, close

    def hear(self, event: Event) -> bool:
        """Update the questions; return True if the event needs no line of its own."""
        match event.event:
            case "approval.request":
                return self._add(approval_of(event))
            case "question.asked":
                return self._add(question_of(event))
            case "question.answered":
                return self._close(question_of(event).key, "was answered elsewhere")
            case "approval.responded":
                how = f"was answered elsewhere: {approval.answered(event.choice)}"
                return self._close(event.request_id, how)
            case "approval.expired":
                return self._close(event.request_id, approval.EXPIRED)
            case "approval.withdrawn":
                return self._close(event.request_id, f"was withdrawn: {event.reason}")
            case ending if ending in TERMINAL:
                for key in [k for k, asked in self.open.items() if asked.run_id == event.run_id]:
                    self._close(key, "was withdrawn: the run is over")
            case _:
                pass
        return False

    async def waits(self, asked: Asked) -> bool:
        """Tell whether it still waits: the events of an old run report old questions."""
        if isinstance(asked, AskedQuestion):
            oldest = (await self._client.status(asked.run_id)).question
            return asked.key in self.open and oldest is not None and oldest.call_id == asked.call_id
        waiting = await self._client.approvals(asked.run_id)
        known = asked.key in self.open
        return known and any(other.request_id == asked.request_id for other in waiting)


def hear_children(
    client: Client, event: Event, hear: Callable[[Event], bool], tasks: TaskGroup
) -> None:
    """If a child run starts, listen to it too: its questions are for the user of its root."""

    async def listen(child: str) -> None:
        try:
            async with aclosing(client.follow(child)) as frames:
                async for frame in frames:
                    hear(frame.event)
                    hear_children(client, frame.event, hear, tasks)
        except Exit:
            return  # it is gone, or no server is reachable: its parent reports that

    if event.event == "subagent.started":
        tasks.start_soon(listen, event.child_run_id)
