"""What is known of well-known models: how much they read at once, and what they cost.

It is in `known.json`, which has a date; `models.json` in the home has the same form and goes before
it. A server's own list, and the configuration, say it better. Prices are those of the vendor's own
server, in US dollars for a million tokens: input, output, and input from the server's cache. Where
a price is not known for sure, or depends on the request, there is none.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.core.types import Value
from holdfast.errors import Misconfigured
from holdfast.models.model import Price as Price

FILE = "models.json"  # in the home
OLLAMA = 16_384  # tokens that Ollama is asked to read at once: about 2 GB for 8 billion parameters
_SHIPPED = Path(__file__).with_name("known.json")
_DATED = frozenset("0123456789-")  # what may follow a model's name: the date of its version

Prices = Annotated[tuple[float, ...], msgspec.Meta(min_length=2, max_length=3)]


class KnownModels(Value):
    """The data of such a file."""

    as_of: str = ""  # the date on which it was right
    windows: Mapping[str, int] = {}  # the longest prefix counts; without the maker before a slash
    prices: Mapping[str, Mapping[str, tuple[float, ...]]] = {}  # by vendor and model

    def window(self, model: str) -> int:
        """Return how many tokens the model reads at once; 0: not known."""
        bare = model.rpartition("/")[2].lower()
        known = [prefix for prefix in self.windows if bare.startswith(prefix)]
        return self.windows[max(known, key=len)] if known else 0

    def price(self, vendor: str, model: str) -> Price:
        """Return what the model costs at this vendor; all 0: not known."""
        table = self.prices.get(vendor, {})
        found = table.get(model) or next(
            (p for n, p in table.items() if n == model[: len(n)] and _is_date(model[len(n) :])),
            (0.0, 0.0, 0.0),
        )
        read, written, cached = (*found, 0.0)[:3]
        return Price(read, written, cached)


def _is_date(rest: str) -> bool:
    return set(rest) <= _DATED


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    as_of: str = ""
    windows: dict[str, int] = {}
    prices: dict[str, dict[str, Prices]] = {}


@cache
def shipped() -> KnownModels:
    """Return what this version of the program knows."""
    return _decode(_SHIPPED.read_bytes())


def known(home: Path) -> KnownModels:
    """Return the same, with what the file in the home says before it."""
    path = home / FILE
    try:
        own = _decode(path.read_bytes())
    except FileNotFoundError:
        return shipped()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"{path} cannot be used: {error}",
            f"write it like {_SHIPPED}, or delete it",
        ) from None
    ours = shipped()
    vendors = {*ours.prices, *own.prices}
    prices = {v: {**own.prices.get(v, {}), **_rest(ours, own, v)} for v in vendors}
    return KnownModels(own.as_of or ours.as_of, {**ours.windows, **own.windows}, prices)


def _rest(ours: KnownModels, own: KnownModels, vendor: str) -> dict[str, tuple[float, ...]]:
    """Return our prices of models that the other file does not have."""
    theirs = own.prices.get(vendor, {})
    return {name: p for name, p in ours.prices.get(vendor, {}).items() if name not in theirs}


def _decode(data: bytes) -> KnownModels:
    written = msgspec.json.decode(data, type=_Written)
    return KnownModels(written.as_of, written.windows, written.prices)
