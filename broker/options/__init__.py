"""Options of the broker: which may change at run time, the changes, and what is in force."""
