"""Settings: read from `config.toml` and the environment, checked once, then frozen."""
