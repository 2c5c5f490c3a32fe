"""The input line: completion of commands and files, the history, and pasted text."""
