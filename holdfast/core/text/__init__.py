"""Text for people: the Markdown parser, widths and truncation, and escaping. Pure."""
