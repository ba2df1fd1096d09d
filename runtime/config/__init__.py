"""Declared configuration tables: loading, lists of tables, single values and the reference page."""
