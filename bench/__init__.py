"""Side-by-side measurements; `python -m bench` from the repository root lists and runs them."""

import os

# Before torch is imported: its idle threads would take our cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
