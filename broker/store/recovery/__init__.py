"""Opening a data directory: the end of the log, its damage, and what is derived from it."""
