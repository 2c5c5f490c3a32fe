"""Administration: list and mark sessions, resend messages, rules, search."""
