"""The options of a run or a conversation, from the command line."""

import argparse
import sys

from msgspec.structs import replace

from holdfast.api.schema.runs import InputMessage, RunRequest
from holdfast.cli.run import workspace
from holdfast.config.models import NO_MODEL
from holdfast.config.settings import Config
from holdfast.core.inbox import Mode
from holdfast.core.types import Value


class RunOptions(Value):
    """The workspace, the session and the model of a run or a conversation."""

    workspace: str
    insists: bool  # the workspace was given, it is not just the current directory
    session_id: str = ""  # empty: a new one
    owner: str = ""  # the owner of the session; empty: the operator
    goes_on: bool = False  # in the latest session
    instructions: str = ""
    model: str = ""
    expected: str = ""  # the model that was set for this command
    finds_model: bool = False  # no model is set anywhere: say which one was found
    answerable: bool = True

    def within(self, session_id: str, owner: str = "") -> "RunOptions":
        """Return the options for that session, in its workspace."""
        return replace(self, session_id=session_id, owner=owner, goes_on=False)

    def typed(self, given: str | tuple[InputMessage, ...], mode: Mode) -> RunRequest:
        """Return the request for a message typed in a conversation, or for a command of the user.

        The command needs no model, and waits for the run at work.
        """
        request = self.request(given, mode)
        if not is_own(given):
            return request
        return replace(request, model=NO_MODEL, mode=Mode.QUEUE)

    def request(self, given: str | tuple[InputMessage, ...], mode: Mode = Mode.QUEUE) -> RunRequest:
        """Return the request that submits this input."""
        return RunRequest(
            input=given,
            workspace=self.workspace or None,
            session_id=self.session_id or None,
            instructions=self.instructions or None,
            model=self.model or None,
            answerable=self.answerable,
            mode=mode,
        )


def is_own(given: str | tuple[InputMessage, ...]) -> bool:
    """Tell whether a typed text is a command of the user's own: `!make test`."""
    return isinstance(given, str) and given.startswith("!") and bool(given[1:].strip())


def read(args: argparse.Namespace, config: Config) -> RunOptions:
    """Return the options that were given. May ask for confirmation of the workspace."""
    return RunOptions(
        workspace=str(workspace.choose(config, args.workspace, confirmed=bool(args.yes))),
        insists=args.workspace is not None,
        session_id=args.session or "",
        goes_on=bool(args.goes_on) and not args.session,
        instructions=args.instructions or "",
        model=args.model or "",
        expected=config.asked_model,
        finds_model=config.origins["model"] == "default",
        answerable=sys.stdin is not None and sys.stdin.isatty(),
    )
