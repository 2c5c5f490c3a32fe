"""The `holdfast` command. It is a client of the API like any other."""
