"""Text on a terminal: Markdown, tables, widths, and escaping of text we did not write."""
