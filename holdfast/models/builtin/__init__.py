"""The built-in model: a small model that runs on this machine, in a process of its own.

`parts` lists the files, `pull` fetches them, `server` is the process, `child` starts and ends it,
`protocol` maps our requests to one JSON object a turn, and `builtin` is the provider.
"""
