"""How well a model works: small tasks with real tools in a scratch folder. Run by `make eval`."""
