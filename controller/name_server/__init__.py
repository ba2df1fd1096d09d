"""The name server: soft state about brokers, topics and routes, kept by each controller for itself."""
