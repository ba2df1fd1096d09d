"""From the broker's queues into a session's window and its socket."""
