"""Commands that publish, subscribe, follow and look up messages."""
