"""Sparkplug B bodies as typed columns; aliases are resolved by the birth certificates in the log."""
