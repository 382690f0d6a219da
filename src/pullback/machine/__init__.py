"""Machines: what a processor has and how fast it is, as data; a TOML file each."""
