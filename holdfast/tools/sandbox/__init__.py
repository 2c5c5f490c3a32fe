"""The sandbox for commands: bubblewrap, Landlock, containers, and the probe that tests them."""
