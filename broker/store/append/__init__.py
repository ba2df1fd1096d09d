"""The write path: a batch becomes records, index entries and state."""
