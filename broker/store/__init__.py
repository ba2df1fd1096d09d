"""The commit log, its queue index and the durable state of one broker. The interface is `LogStore`."""
