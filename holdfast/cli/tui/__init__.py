"""The conversation on a full terminal, drawn below the terminal's scrollback."""
