"""Rewrites of graphs before fusion: what processors want otherwise than it is written."""
