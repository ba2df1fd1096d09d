"""Delayed messages: due times, buckets and the timer."""
