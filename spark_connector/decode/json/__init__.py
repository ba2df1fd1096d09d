"""JSON bodies as typed columns, and the inference of their fields."""
