"""`holdfast models`: list, choose, fetch, remove and try models."""
