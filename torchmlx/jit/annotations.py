"""torch.jit.annotations: names for TorchScript's eyes."""

from __future__ import annotations

BroadcastingList1 = BroadcastingList2 = BroadcastingList3 = list

__all__ = ["BroadcastingList1", "BroadcastingList2", "BroadcastingList3"]
