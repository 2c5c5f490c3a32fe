"""`holdfast doctor`: check the installation, and fix what needs no decision."""
