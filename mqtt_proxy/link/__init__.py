"""The proxy's one connection to the broker, in this process or over TCP."""
