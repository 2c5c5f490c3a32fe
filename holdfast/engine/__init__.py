"""The engine performs what `core` decides. It owns every task, wait and clock."""
