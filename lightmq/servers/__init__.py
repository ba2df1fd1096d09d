"""Servers as processes: everything in one, each part alone, several proxies; what they check and print at the start."""
