"""The log: its files, how far it is durable and confirmed, and what says so on the disk."""
