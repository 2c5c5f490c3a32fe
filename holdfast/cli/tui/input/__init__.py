"""What is typed: completion of commands and files, the history, and pasted text."""
