"""Connections of a Python worker process to brokers, who the masters are, and how an outage is waited out."""
