"""What is read off loop nests: what lies in lanes, what they keep busy, what they cost."""
