"""Shared subscriptions: who gets which message, and how far each has come."""
