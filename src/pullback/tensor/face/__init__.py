"""The tensor: its operators, its keys, how it prints, and the scalars inside a definition."""
