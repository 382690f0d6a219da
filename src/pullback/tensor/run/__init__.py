"""Functions as compiled programs: calls of them, what the host gives, schedules by hand."""
