"""What programs are."""
