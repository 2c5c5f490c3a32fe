"""The conversation line by line, for dumb terminals and programs."""
