"""The index of keys: which records of a topic have a key."""
