"""Linear maps and embeddings, as functions and as modules."""
