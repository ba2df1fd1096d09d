"""The commit log, its queue index and the durable state of one broker. The door is `LogStore`."""
