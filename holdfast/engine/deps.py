"""The parts that the engine is built from. The composition root fills them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.commands.command import Command
from holdfast.core.redaction import Redactor
from holdfast.core.run.limits import Limits
from holdfast.core.session.instructions import InstructionFile
from holdfast.core.session.session import OnStart
from holdfast.core.types import Value
from holdfast.engine.clock import Clock
from holdfast.engine.commands.deps import ProcessControl
from holdfast.engine.life.lifecycle import GatewayLife
from holdfast.engine.messenger import Chatting
from holdfast.engine.runs.approvals import ApprovalPolicy, Audit
from holdfast.journal.journal import Journal
from holdfast.models.model import Models
from holdfast.tools.tool import RestoresFiles, RunsCommands, Tool, VersionStore


async def no_instructions(workspace: str) -> Sequence[InstructionFile]:
    """Find no files with instructions."""
    return ()


class ServiceDeps(Value):
    """The parts that a service is built from."""

    journal: Journal
    blobs: VersionStore
    files: RestoresFiles
    models: Models
    tools: Callable[[], Sequence[Tool[Any]]]  # of the moment; the same sequence if unchanged
    clock: Clock
    limits: Limits
    on_start: OnStart
    home: Path
    workspace_roots: tuple[Path, ...]
    retention_s: float
    policy: ApprovalPolicy
    version: str
    redactor: Redactor
    hands: RunsCommands
    audit: Audit
    chatting: Chatting | None = None  # None: no gateway, but a terminal that embeds the engine
    control: Callable[[GatewayLife], ProcessControl] | None = None  # None: no process to restart
    commands: Callable[[], Mapping[str, Command]] = dict  # the operator's, loaded at first use

    # Reads the files with instructions for a workspace: the project's, and the user's own.
    find_instructions: Callable[[str], Awaitable[Sequence[InstructionFile]]] = no_instructions

    @property
    def model_name(self) -> str:
        """The name of the configured model."""
        return self.models.main.name
