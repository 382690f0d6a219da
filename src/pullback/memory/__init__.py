"""Where values lie: how long each lives, what shares a place, what is computed again to save it."""
