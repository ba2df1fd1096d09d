"""What only RocketMQ's clients and tools ask, in RocketMQ's own layouts."""
