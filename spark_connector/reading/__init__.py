"""Batch and streaming reads: from options to ranges of queues, and from ranges to the rows of a task."""
