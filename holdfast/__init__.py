"""Holdfast: a self-hosted AI agent that holds what it has accepted."""

__version__ = "0.1.0"
