"""Driving runs: the loop, tool calls, approvals, background processes and child runs."""
