"""Decisions about a whole session: its state, where a new message goes, answers and replies."""
