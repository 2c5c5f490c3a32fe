"""The list of models of servers with one of OpenAI's APIs: `GET /models`."""

import math
from typing import Any

import msgspec

from holdfast.models.model import ListedModel, Price


class _Meta(msgspec.Struct):
    n_ctx_train: Any = None


class _Entry(msgspec.Struct):
    """A model in the list. Servers say its window in different fields, OpenAI in none."""

    id: str
    context_length: Any = None  # OpenRouter
    context_window: Any = None  # Groq
    max_model_len: Any = None  # vLLM
    max_context_length: Any = None  # Mistral
    meta: _Meta | None = None  # llama.cpp
    pricing: Any = None  # OpenRouter: dollars for one token, as texts


class _List(msgspec.Struct):
    data: list[_Entry]


_decode_list = msgspec.json.Decoder(_List).decode


def read_models(body: bytes) -> list[ListedModel]:
    """Read the body of `GET /models`."""
    found = _decode_list(body).data
    return [ListedModel(entry.id, _window(entry), _price(entry.pricing)) for entry in found]


def _price(given: object) -> Price:
    """Return the price of a million tokens; not known if it is not given in this form."""
    if not isinstance(given, dict) or not isinstance(given.get("prompt"), str):
        return Price()
    names = ("prompt", "completion", "input_cache_read")
    try:
        read, written, cached = (round(1e6 * float(given.get(n) or 0), 6) for n in names)
    except (TypeError, ValueError):
        return Price()
    paid = (read, written, cached)
    if not all(math.isfinite(usd) and usd >= 0 for usd in paid):
        return Price()
    return Price(read, written, cached, free=not any(paid))


def _window(entry: _Entry) -> int:
    trained = entry.meta.n_ctx_train if entry.meta is not None else None
    known = (
        *(entry.context_length, entry.context_window, entry.max_model_len),
        *(entry.max_context_length, trained),
    )
    return next((size for size in known if isinstance(size, int) and size > 0), 0)
