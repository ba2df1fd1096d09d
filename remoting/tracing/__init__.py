"""Traces of single messages: W3C trace context in their properties, spans at the edges, their way to a receiver."""
