"""Compiled hot loops shared by all servers and clients, each with a reference in plain Python."""
