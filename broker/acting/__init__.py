"""A replica that stands in, read only, for a master that cannot be reached."""
