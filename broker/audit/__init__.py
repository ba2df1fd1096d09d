"""The record of administrative acts in the log."""
