"""Connections of commands: to a broker, and to the controller that leads."""
