"""Transactions of RocketMQ's producers: half messages, their outcome, and the question after it."""
