"""Our own channels, and the secrets each asks for: known without importing any of them."""

from collections.abc import Mapping
from types import MappingProxyType

OWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"telegram": ("TELEGRAM_BOT_TOKEN",), "webhook": ("HOLDFAST_WEBHOOK_SECRET",)}
)
