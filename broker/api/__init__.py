"""The compiled intake; requests are in the rooms of their features."""
