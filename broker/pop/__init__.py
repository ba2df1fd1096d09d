"""POP: consumption with ownership of single messages for a time."""
