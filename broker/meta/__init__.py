"""The compiled rows of sinks and appends; views are in the rooms of their features."""
