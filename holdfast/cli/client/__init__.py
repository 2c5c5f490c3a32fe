"""The client of the API that all commands use, and the engine embedded where no gateway runs."""
