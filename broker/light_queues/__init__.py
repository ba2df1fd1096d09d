"""Light queues: how many there may be, and when one that nobody uses ends."""
