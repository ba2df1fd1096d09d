"""The declared tables of the connector: options, the values their texts stand for, and columns."""
