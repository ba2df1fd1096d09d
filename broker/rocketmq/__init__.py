"""Requests of RocketMQ's clients and tools, in RocketMQ's own layouts."""
