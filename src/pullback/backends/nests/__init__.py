"""What emitters of loop nests go by: lanes, sizes, what is busy, what it costs, polynomials."""
