"""What a message is in the log and on the wire: the record, its properties, and the names it is stored under."""
