"""Retained messages: view, quota and expiry."""
