"""Fakes at the wire: servers that speak the real protocols, with faults on demand."""
