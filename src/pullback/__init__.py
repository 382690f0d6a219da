"""pullback: index expressions, their gradients, whole programs."""
