"""`holdfast run` and `holdfast runs`: one run, its output and its questions."""
