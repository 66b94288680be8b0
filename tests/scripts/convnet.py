"""A convolutional network with batch norm and dropout on made-up digits, from a DataLoader."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, random_split


class Digits(Dataset):
    """Images of bars whose place tells the class."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 4, (n,), generator=g)
        self.images = torch.randn(n, 1, 12, 12, generator=g) * 0.5
        for i, label in enumerate(self.labels.tolist()):
            self.images[i, 0, 3 * label : 3 * label + 2] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], int(self.labels[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.bn2 = nn.BatchNorm2d(16)
        self.dropout1 = nn.Dropout2d(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, loader, optimizer):
    model.train()
    losses = []
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test(model, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return loss / len(loader.dataset), correct


def main():
    torch.manual_seed(1)
    trained, held = random_split(Digits(120), [96, 24])
    train_loader = DataLoader(trained, batch_size=16, shuffle=True)
    test_loader = DataLoader(held, batch_size=24)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    losses, tests = [], []
    for _ in range(3):
        losses += train(model, train_loader, optimizer)
        tests.append(test(model, test_loader))
        scheduler.step()
    running = model.bn2.running_var.tolist()
    print(json.dumps({"loss": losses, "test": tests, "running": running}))


if __name__ == "__main__":
    main()
