"""Parts of the screen that show in full what it shows in short: a list of calls, changed files."""
