"""Control: loops, branches and calls of the host, recorded once, run again, differentiated."""
