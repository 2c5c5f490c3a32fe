"""The state machines of runs, tool calls, child runs and background processes."""
