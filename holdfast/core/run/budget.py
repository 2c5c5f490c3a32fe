"""Budgets: how much money a run may spend on models.

Before a model is asked, the worst case of the request is reserved; afterwards the real cost takes
its place. A request whose outcome a crash hid keeps its reservation: it may have cost that much. So
what is spent never exceeds the budget, whatever happens in between.
"""

from holdfast.core.types import Value

MAX_OUTPUT = 8_192  # tokens of one answer while there is a budget
LEAST_OUTPUT = 256  # an answer with less room than this is not worth its request
MARGIN = 1.3  # our estimate of the input may be too low by this factor
EXTRA = 200  # tokens, for what a server adds to a short request


class Reserved(Value):
    """The request may be sent."""

    usd: float
    max_output: int  # tokens that the answer may have


class OverBudget(Value):
    """The request could cost more than is left."""

    left_usd: float


def reserve(
    budget_usd: float,
    spent_usd: float,
    input_tokens: int,
    usd_per_input: float,
    usd_per_output: float,
    most_output: int = MAX_OUTPUT,
) -> Reserved | OverBudget:
    """Reserve the worst case of a request. Prices are for one token."""
    left = budget_usd - spent_usd
    reading = (MARGIN * input_tokens + EXTRA) * usd_per_input
    if left < reading:
        return OverBudget(max(0.0, left))
    output = most_output
    if usd_per_output:
        output = int(min(output, (left - reading) / usd_per_output))
    if output < LEAST_OUTPUT:
        return OverBudget(left)
    return Reserved(reading + output * usd_per_output, output)
