"""Running commands: parse and plan a command line, start and kill its processes."""
