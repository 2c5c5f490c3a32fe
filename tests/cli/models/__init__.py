"""`holdfast models`, through real processes."""
