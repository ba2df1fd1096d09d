"""What the broker knows about topics, filters, sessions, groups and sinks: views over the log's state records."""
