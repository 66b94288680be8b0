"""A mixture of experts routed by nonzero and index_add_, with a gradient for every part."""

import json

import torch
from torch import nn
from torch.nn import functional as F


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SparseMoe(nn.Module):
    def __init__(self, dim, hidden, experts, top_k):
        super().__init__()
        self.num_experts, self.top_k = experts, top_k
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList([Expert(dim, hidden) for _ in range(experts)])

    def forward(self, hidden_states):
        shape = hidden_states.shape
        hidden_states = hidden_states.view(-1, shape[-1])
        logits = self.gate(hidden_states)
        weights = F.softmax(logits, dim=1, dtype=torch.float)
        weights, selected = torch.topk(weights, self.top_k, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        weights = weights.to(hidden_states.dtype)
        final = torch.zeros_like(hidden_states)
        mask = F.one_hot(selected, num_classes=self.num_experts).permute(2, 1, 0)
        for i in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            expert = self.experts[i]
            idx, top_x = torch.where(mask[i].squeeze(0))
            current = hidden_states[None, top_x].reshape(-1, shape[-1])
            current = expert(current) * weights[top_x, idx, None]
            final.index_add_(0, top_x, current.to(hidden_states.dtype))
        return final.reshape(shape), logits


def load_balancing(logits, num_experts, top_k):
    weights = F.softmax(logits, dim=-1)
    _, selected = torch.topk(weights, top_k, dim=-1)
    mask = F.one_hot(selected, num_experts).float()
    return torch.sum(mask.mean(0) * weights.mean(0).unsqueeze(0)) * num_experts


def main():
    torch.manual_seed(4)
    model = SparseMoe(16, 24, 6, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    x = torch.randn(3, 7, 16)
    target = torch.roll(x, 1, dims=1) * 0.5
    losses = []
    for _ in range(12):
        y, logits = model(x)
        loss = F.mse_loss(y, target) + 0.01 * load_balancing(logits, 6, 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    unused = [n for n, p in model.named_parameters() if p.grad is None]
    print(json.dumps({"loss": losses, "unused": len(unused)}))


if __name__ == "__main__":
    main()
