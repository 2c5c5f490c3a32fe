"""The life of the process: its states, journal time, and the detection of a restored journal."""
