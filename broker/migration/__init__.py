"""Queues copied from a RocketMQ cluster, exactly once."""
