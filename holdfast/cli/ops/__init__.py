"""Commands for the operator: approvals, audit, backup, channels, outbox, users, sandbox."""
