"""Slash commands on a session, from a chat and from the terminal."""
