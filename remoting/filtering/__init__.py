"""Filters of messages: tags, SQL92, topic filters, keys and times, evaluated over raw records."""
