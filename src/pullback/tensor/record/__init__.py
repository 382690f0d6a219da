"""What is going on: values and their memory, traces, and what is recorded in them."""
