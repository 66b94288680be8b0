"""Training that is checkpointed, run under autocast, saved and resumed from the file."""

import json
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)])
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.training else layer(x)
        return self.head(x.mean(1))


def build():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    return model, optimizer, scheduler


def epoch(model, optimizer, scheduler, loader, amp):
    model.train()
    losses = []
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    return losses


def main():
    torch.manual_seed(6)
    data = torch.randn(32, 5, 6)
    labels = (data.sum((1, 2)) > 0).long()
    loader = DataLoader(TensorDataset(data, labels), batch_size=8, shuffle=True)
    model, optimizer, scheduler = build()
    exact = [epoch(model, optimizer, scheduler, loader, amp=False) for _ in range(2)]
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        },
        path,
    )
    following = epoch(model, optimizer, scheduler, loader, amp=False)

    saved = torch.load(path, map_location="cpu")
    model, optimizer, scheduler = build()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    torch.set_rng_state(saved["rng"])
    again = epoch(model, optimizer, scheduler, loader, amp=False)
    assert all(abs(a - b) < 1e-6 for a, b in zip(following, again, strict=True)), again
    rough = epoch(model, optimizer, scheduler, loader, amp=True)
    print(json.dumps({"exact": exact, "again": again, "rough": rough}))


if __name__ == "__main__":
    main()
