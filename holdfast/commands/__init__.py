"""Slash commands, grouped by what they are about. The contract is `command.py`."""
