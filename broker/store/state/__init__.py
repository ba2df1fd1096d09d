"""Durable state: changes in the log, the tables they make, and their snapshot."""
