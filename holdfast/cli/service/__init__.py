"""`holdfast gateway`: run, start, stop and install the gateway as a service."""
