"""The composition root: builds every part from the configuration and runs all of it.

The process that holds the home's lock is the owner: it opens the journal, recovers, and serves
the front door on a unix socket. A gateway serves the network too, and waits for the lock; a
terminal embeds the same engine only where there is no owner.
"""
