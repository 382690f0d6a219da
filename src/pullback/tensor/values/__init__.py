"""Operations as functions of values, each a definition: they take and give values."""
