"""`holdfast sessions`: list, search, export and import."""
