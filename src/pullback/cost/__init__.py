"""What a launch costs, in nanoseconds of one machine: its parts, and a bound from below."""
