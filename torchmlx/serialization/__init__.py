"""Reading and writing of weights."""
