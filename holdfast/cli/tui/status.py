"""The status line: which model, how long, what it has cost, what is left, how well confined."""

import time
from collections.abc import Callable

from holdfast.cli.tui.style import amount, seconds
from holdfast.cli.tui.ui import Ui
from holdfast.config import Config

_CONFINED = {"L0": "not confined", "L1": "confined a little", "L2": "confined", "L3": "container"}


def now() -> float:
    """For the eye only: how long something has been going on."""
    return time.time()  # noqa: TID251  for the eye only


def line(config: Config, ui: Ui, model: str) -> Callable[[], str]:
    """What the status line says, whenever it is asked."""
    prices = config.openai

    def say() -> str:
        view = ui.view
        parts = [model]
        if view.run_id and view.begun_at:
            parts.append(seconds(max(0.0, now() - view.begun_at)))
        if view.input_tokens or view.output_tokens:
            parts.append(f"↑{amount(view.input_tokens)} ↓{amount(view.output_tokens)}")
        cost = view.input_tokens * prices.usd_per_m_input
        cost += view.output_tokens * prices.usd_per_m_output
        if cost:
            parts.append(f"${cost / 1e6:.2f}")
        if prices.context_tokens and view.context_tokens:
            left = max(0.0, 1 - view.context_tokens / prices.context_tokens)
            parts.append(f"{left:.0%} context left")
        if view.sandbox:
            parts.append(f"{view.sandbox} {_CONFINED.get(view.sandbox, '')}".strip())
        parts.append(f"⇥ {ui.mode}")
        if view.busy:
            stopping = view.run_id and view.stopping == view.run_id
            parts.append("stopping …" if stopping else "Esc stops")
        return " · ".join(parts)

    return say
