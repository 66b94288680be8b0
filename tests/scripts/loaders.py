"""DataLoaders: workers, a collate function, a sampler with weights, a stream; copy_ of entries."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler


class Squares(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, i):
        return {"x": torch.full((i % 3 + 1,), float(i)), "y": i * i}


class Counting(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 12, step))


def padded(samples):
    xs = nn.utils.rnn.pad_sequence([s["x"] for s in samples], batch_first=True)
    return xs, torch.tensor([s["y"] for s in samples])


def epoch(workers, **settings):
    loader = DataLoader(Squares(), 4, num_workers=workers, collate_fn=padded, **settings)
    return [[x.sum().item(), *map(float, x.shape), *map(float, y)] for x, y in loader]


def main():
    torch.manual_seed(7)
    weights = WeightedRandomSampler(torch.rand(23), 20)
    out = {
        "workers": [epoch(2, shuffle=True), epoch(2, shuffle=True, persistent_workers=True)],
        "alone": epoch(0, shuffle=True, drop_last=True),
        "weighted": epoch(0, sampler=weights),
        "stream": [b.tolist() for b in DataLoader(Counting(), 3, num_workers=2)],
    }
    first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    entries = second.state_dict()
    with torch.no_grad():
        for key, value in first.state_dict().items():
            entries[key].copy_(value.flip(0).flip(0))
    out["copied"] = second(torch.ones(2, 4)).flatten().tolist()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
