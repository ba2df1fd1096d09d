"""Topics: their queues, attributes, retention and publication."""
