"""From a client's PUBLISH to the broker's confirmation and the acknowledgement."""
