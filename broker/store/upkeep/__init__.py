"""What goes on in the background: retention, snapshots, and the search for damage."""
