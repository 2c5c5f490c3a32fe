"""The terminal one sits in: a screen of its own below the terminal's scrollback."""
