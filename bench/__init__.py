"""What Holdfast costs, and what this machine could do at best."""
