"""Schedules as data, and the memory plan."""
