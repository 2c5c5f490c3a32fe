"""Access to files: opening paths inside the workspace, searching files, snapshots of trees."""
