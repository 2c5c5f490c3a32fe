"""What a command changed in the workspace: every file before and after it.

`snapshots` is the door; `scan` looks at the files, `ignore` says which are left out, `watch` says
which directories to look at again, and `store` keeps the contents as they were.
"""
