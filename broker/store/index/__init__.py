"""The index of the queues: which records each of them holds, and how they are read."""
