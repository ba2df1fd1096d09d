"""SUBSCRIBE and UNSUBSCRIBE: what the broker is asked, and what its answer begins."""
