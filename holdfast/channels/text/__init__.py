"""Markdown from models as text that a chat platform accepts: rendering, splitting, links."""
