"""Retained messages that a fresh SUBSCRIBE is given first."""
