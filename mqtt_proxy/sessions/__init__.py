"""One client of the proxy, from its CONNECT to the end of its connection."""
