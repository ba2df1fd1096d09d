"""Shared subscriptions: the members of this proxy and what the broker gives them."""
