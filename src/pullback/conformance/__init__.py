"""What every backend must compute: cases as data, run beside the reference, told as a report."""
