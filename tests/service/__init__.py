"""The gateway as a service, under a real service manager."""
