"""Benchmarks: CPU per message and ratios against peers, never a timed test."""
