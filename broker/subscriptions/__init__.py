"""Subscriptions: filters, dispatch, subscribers and followers."""
