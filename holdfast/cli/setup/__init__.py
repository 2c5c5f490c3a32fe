"""`holdfast setup`: find a model, try it with one call, write it to `config.toml`."""
