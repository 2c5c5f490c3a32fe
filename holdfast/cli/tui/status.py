"""The greeting, the status line (model, time, cost, context, sandbox), and the farewell."""

from collections.abc import Callable

from holdfast import __version__
from holdfast.cli.client.client import Client
from holdfast.cli.run import notes
from holdfast.cli.run.options import RunOptions
from holdfast.cli.tui.style import amount, columns, cut, seconds, wall_clock
from holdfast.cli.tui.ui import Ui
from holdfast.config.settings import Config
from holdfast.core.inbox import Mode
from holdfast.core.text.escape import reveal
from holdfast.models.model import Price

ENTER_DOES = {
    Mode.INTERRUPT: "Enter interrupts",
    Mode.QUEUE: "Enter queues",
    Mode.STEER: "Enter steers",
}
PRICE_UNKNOWN = "price unknown"
TAB_QUEUES = "Tab queues"
RUN_KEPT = "The active run is kept and continues with"
RUN_CONTINUES = "The active run continues; to see it"
_SANDBOX = {
    "L0": "no sandbox (L0)",
    "L1": "weak sandbox (L1)",
    "L2": "sandbox (L2)",
    "L3": "container (L3)",
}


def greeting(ui: Ui, model: str, options: RunOptions) -> list[str]:
    """Return the first lines: version, model, workspace, and what to know about the model."""
    style, where = ui.style, reveal(options.workspace)
    told = f"{style.bold('Holdfast')} {__version__} · {model}"
    lines = [
        f"{told} · {where}" if where else told,
        style.dim("/help lists keys and commands · Esc stops a run · Ctrl-D leaves"),
    ]
    lines = [cut(line, ui.size.columns) for line in lines]
    if model.partition("/")[0] == "offline":
        lines.append(notes.no_model())
    if model.partition("/")[0] == "builtin":
        lines.append(notes.SMALL_MODEL)
    if options.expected and model != options.expected:
        lines.append(notes.other_model(options.expected, model))
    return [*lines, ""]


def farewell(ui: Ui, client: Client, session_id: str) -> list[str]:
    """Return the last lines: what continues, what was not sent, and how to come back."""
    lines = ["Shutting down…"] if client.is_owner else []
    if ui.view.busy and not ui.view.stopping:
        how = f"--resume {session_id}" if client.owner else "--continue"
        lines.append(f"{RUN_KEPT if client.is_owner else RUN_CONTINUES}: holdfast {how}")
    lines += [f"not sent: {reveal(said.text)}" for said in ui.sending]
    return [*lines, f"to come back: holdfast --resume {session_id}"] if session_id else lines


def line(config: Config, ui: Ui, model: str) -> Callable[[], str]:
    """Return a function that draws the status line."""
    provider, _, name = model.partition("/")
    table = config.models.get(provider)
    price, window = (table.price(name), table.window(name)) if table else (Price(free=True), 0)

    def say() -> str:
        view = ui.view
        parts = [(6, model)]  # where there is no room for all, the highest number goes first
        if view.run_id and view.begun_at:
            parts.append((5, seconds(max(0.0, wall_clock() - view.begun_at))))
        if view.input_tokens or view.output_tokens:
            parts.append((10, f"↑{amount(view.input_tokens)} ↓{amount(view.output_tokens)}"))
        if view.cost_usd:
            parts.append((8, f"${view.cost_usd:.2f}"))
        elif view.output_tokens and not price.known:
            parts.append((8, PRICE_UNKNOWN))
        if window and view.context_tokens:
            left = max(0.0, 1 - view.context_tokens / window)
            parts.append((7, f"{left:.0%} context left"))
        if view.processes:
            parts.append((4, f"{len(view.processes)} in background"))
        if view.sandbox:
            parts.append((9, _SANDBOX.get(view.sandbox, view.sandbox)))
        return _fitting([*parts, *_keys(ui)], ui.size.columns)

    return say


def _keys(ui: Ui) -> list[tuple[int, str]]:
    """Say what the keys do to the run at work, before they are pressed."""
    view = ui.view
    if not view.busy:
        return [(4, f"⇥ {ui.mode}")] if ui.mode is not Mode.INTERRUPT else []
    if view.run_id and view.stopping == view.run_id:
        return [(1, "stopping …")]
    parts = [(1, "Esc stops")]
    if not ui.may_interrupt:
        return parts
    if ui.mode is not Mode.QUEUE:
        parts.insert(0, (3, TAB_QUEUES))
    return [(2, ENTER_DOES[ui.mode]), *parts]


def _fitting(parts: list[tuple[int, str]], width: int) -> str:
    said = " · ".join(text for _, text in parts)
    if len(parts) == 1 or columns(said) <= width:
        return said
    least = max(parts)
    return _fitting([part for part in parts if part != least], width)
