"""Crashes, recovery and shutdown, against the real process."""
