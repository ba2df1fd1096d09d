"""Reading: pulls, bounds, selection and long polls."""
