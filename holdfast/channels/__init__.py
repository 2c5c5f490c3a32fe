"""The chat platforms that Holdfast talks to. `channel.py` is the contract of a channel.

`OWN` lists the built-in channels and the environment variables that hold their secrets, so that
both are known without importing a channel.
"""

from collections.abc import Mapping
from types import MappingProxyType

OWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"telegram": ("TELEGRAM_BOT_TOKEN",), "webhook": ("HOLDFAST_WEBHOOK_SECRET",)}
)
