"""Batch and streaming writes: rows become entries, which are staged by the tasks and committed by the driver."""
