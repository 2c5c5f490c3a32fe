"""One module for each thing a client can ask for: submit, stop, steer."""
