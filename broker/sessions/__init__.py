"""Sessions: records, ownership, subscriptions and requests."""
