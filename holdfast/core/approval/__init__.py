"""Approval: what may run without a question, what must be asked, and which answers count."""
