"""Messages from before a subscription: how they are asked for, and how they are read."""
