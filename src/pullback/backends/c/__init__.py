"""Loop nests as C11: one file a program, compiled by whatever compiler is there."""
