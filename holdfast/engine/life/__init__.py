"""Start and shutdown: recovery, quarantine of crashing runs, drain, state of the gateway."""
