"""What backends that write loop nests share: what a nest says, its identity, polynomials."""
