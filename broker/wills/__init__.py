"""Wills: their records, when they are due, and the requests about them."""
