"""The list of models of servers with one of OpenAI's APIs: `GET /models`."""

from typing import Any

import msgspec

from holdfast.models.model import ListedModel


class _Meta(msgspec.Struct):
    n_ctx_train: Any = None


class _Entry(msgspec.Struct):
    """A model in the list. Servers say its window in different fields, OpenAI in none."""

    id: str
    context_length: Any = None  # OpenRouter
    context_window: Any = None  # Groq
    max_model_len: Any = None  # vLLM
    meta: _Meta | None = None  # llama.cpp


class _List(msgspec.Struct):
    data: list[_Entry]


_decode_list = msgspec.json.Decoder(_List).decode


def read_models(body: bytes) -> list[ListedModel]:
    """Read the body of `GET /models`."""
    return [ListedModel(entry.id, _window(entry)) for entry in _decode_list(body).data]


def _window(entry: _Entry) -> int:
    trained = entry.meta.n_ctx_train if entry.meta is not None else None
    known = (entry.context_length, entry.context_window, entry.max_model_len, trained)
    return next((size for size in known if isinstance(size, int) and size > 0), 0)
