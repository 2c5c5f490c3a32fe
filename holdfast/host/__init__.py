"""This process and this machine: the lock on the home, signals, logging, supervisors, backups."""
