"""Moving from a RocketMQ cluster into this one, while both are in use."""
