"""Users and access rules made by RocketMQ's administrative requests."""
