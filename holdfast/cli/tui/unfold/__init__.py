"""What the screen shows in short, in full: a list of calls, changed files, a pager."""
