"""Reserved for the one-page HTML viewer: nothing is here yet."""
