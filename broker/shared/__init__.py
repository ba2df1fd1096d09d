"""Shared subscriptions: which member gets which message, and how far each group has come."""
