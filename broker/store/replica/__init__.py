"""A replica of a log: bytes that are handed out, and bytes that are taken over."""
