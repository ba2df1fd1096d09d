"""The log: its files, how far it is durable and confirmed, and the files that record it."""
