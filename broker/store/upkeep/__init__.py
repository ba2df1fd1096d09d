"""Background work: retention, snapshots, and the search for damage."""
