"""The text form of operations."""
