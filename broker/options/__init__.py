"""Options that change at run time."""
