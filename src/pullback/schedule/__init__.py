"""Schedules as data, and how one is chosen."""
