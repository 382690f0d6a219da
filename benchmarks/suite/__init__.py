"""The suite: what pullback and its peers take for the same work, see docs/benchmarks.md."""
