"""Named checks between stages."""
