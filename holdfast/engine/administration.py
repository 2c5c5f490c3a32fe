"""Administration of sessions, deliveries and rules, over the same work."""

from anyio.abc import TaskGroup

from holdfast.engine.admin.deliveries import DeliveryAdmin
from holdfast.engine.admin.library import SessionLibrary
from holdfast.engine.admin.processes import ProcessAdmin
from holdfast.engine.admin.rules import RuleAdmin
from holdfast.engine.admin.sessions import SessionAdmin
from holdfast.engine.chats.outbox import Outbox
from holdfast.engine.commands.deps import CommandDeps, ProcessControl
from holdfast.engine.commands.terminal import TerminalCommands
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.intents.submit import Intake
from holdfast.engine.runs.approvals import Audit
from holdfast.engine.work import Work


class Administration:
    """Sessions, deliveries, rules, and the operator's slash commands."""

    def __init__(
        self,
        deps: ServiceDeps,
        work: Work,
        commands: CommandDeps,
        intake: Intake,
        audit: Audit,
        outbox: Outbox | None,
        control: ProcessControl | None,
        tasks: TaskGroup,
    ) -> None:
        journal, sessions, clock, model = deps.journal, work.sessions, deps.clock, deps.model_name
        if outbox is None:  # without channels it is never started: orders are only recorded
            outbox = Outbox(journal, sessions, clock, {}, tasks)
        self.library = SessionLibrary(
            journal, sessions, model, intake.workspace, clock.now, work.rewinder
        )
        self.sessions = SessionAdmin(journal, sessions, work.search, audit)
        self.deliveries = DeliveryAdmin(outbox, audit)
        self.background = ProcessAdmin(sessions, deps.hands, work.processes, audit)
        self.rules = RuleAdmin(work.standing, audit)
        self.commands = TerminalCommands(commands, deps.commands, work.need, control)
