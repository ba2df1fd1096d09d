"""Publishes and sessions of a proxy in the same process."""
