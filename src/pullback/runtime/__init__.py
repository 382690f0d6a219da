"""Running programs: machine, pool, rings, caches."""
