"""Indices as numbers: affine forms, their ranges, division."""
