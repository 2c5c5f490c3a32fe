"""Tests of the terminal one sits in."""
