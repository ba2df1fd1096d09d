"""Wills: handed to the broker at CONNECT, judged once more when one is due."""
