"""Lite topics: light queues below a parent topic, read in order by the clients that name them."""
