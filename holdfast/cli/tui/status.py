"""The status line: the model, elapsed time, cost, context left, and the sandbox."""

from collections.abc import Callable

from holdfast.cli.tui.style import amount, columns, seconds, wall_clock
from holdfast.cli.tui.ui import Ui
from holdfast.config.settings import Config
from holdfast.core.types import Usage
from holdfast.models.model import Price

_SANDBOX = {
    "L0": "no sandbox (L0)",
    "L1": "weak sandbox (L1)",
    "L2": "sandbox (L2)",
    "L3": "container (L3)",
}


def line(config: Config, ui: Ui, model: str) -> Callable[[], str]:
    """Return a function that draws the status line."""
    provider, _, name = model.partition("/")
    table = config.models.get(provider)
    price, window = (table.price(name), table.window(name)) if table else (Price(), 0)

    def say() -> str:
        view = ui.view
        parts = [(4, model)]  # where there is no room for all, the highest number goes first
        if view.run_id and view.begun_at:
            parts.append((3, seconds(max(0.0, wall_clock() - view.begun_at))))
        if view.input_tokens or view.output_tokens:
            parts.append((8, f"↑{amount(view.input_tokens)} ↓{amount(view.output_tokens)}"))
        if cost := price.cost(Usage(view.input_tokens, view.output_tokens)):
            parts.append((6, f"${cost:.2f}"))
        if window and view.context_tokens:
            left = max(0.0, 1 - view.context_tokens / window)
            parts.append((5, f"{left:.0%} context left"))
        if view.sandbox:
            parts.append((7, _SANDBOX.get(view.sandbox, view.sandbox)))
        parts.append((2, f"⇥ {ui.mode}"))
        if view.busy:
            stopping = view.run_id and view.stopping == view.run_id
            parts.append((1, "stopping …" if stopping else "Esc stops"))
        return _fitting(parts, ui.size.columns)

    return say


def _fitting(parts: list[tuple[int, str]], width: int) -> str:
    said = " · ".join(text for _, text in parts)
    if len(parts) == 1 or columns(said) <= width:
        return said
    least = max(parts)
    return _fitting([part for part in parts if part != least], width)
