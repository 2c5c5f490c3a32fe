"""Telegram: the channel, and the methods of the Bot API that it calls."""

from holdfast.channels.telegram.channel import CHANNEL

__all__ = ["CHANNEL"]
