"""Reads a data directory while another process writes it; the entry point is `store.AttachedStore`."""
