"""Side-by-side measurements; `python -m bench` from the repository root lists and runs them."""
