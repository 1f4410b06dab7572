"""A small convnet learns to read handwritten digits: an ordinary PyTorch program.

It runs by itself (``python -m refruntime.demo.digits``); ``refruntime demo`` runs its functions and
looks at the memory meanwhile.

The images are the test part of E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
Digits", UCI Machine Learning Repository, 1998 (CC BY 4.0), in the order in which scikit-learn has
them: 1797 images of 8 by 8 pixels, 0 to 16. The last fifth is the test set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import refruntime as torch
from refruntime import nn
from refruntime.nn import functional as F
from refruntime.utils.data import DataLoader, TensorDataset


class DigitNet(nn.Module):
    """Two convolutions, a pooling, and a linear layer over what they see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.norm2 = nn.BatchNorm2d(64)
        self.dropout = nn.Dropout(0.5)
        self.classify = nn.Linear(64 * 4 * 4, 10)

    def forward(self, images: Any) -> Any:
        """Return a score for each digit; `images` is (batch, 1, 8, 8)."""
        x = F.relu(self.norm1(self.conv1(images)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.max_pool2d(x, 2)
        return self.classify(self.dropout(x.flatten(1)))


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set: float images in [0, 1], and their digits."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        images = torch.from_numpy(file["images"]).float().div_(16).unsqueeze(1)
        labels = torch.from_numpy(file["labels"]).long()
    first_test = len(labels) - len(labels) // 5
    train = TensorDataset(images[:first_test], labels[:first_test])
    test = TensorDataset(images[first_test:], labels[first_test:])
    return train, test


def jitter(images: Any) -> Any:
    """Move each image by up to one pixel each way: the test set's writers are other people."""
    padded = F.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, len(images), 1))
    pixel = torch.arange(8)
    each = torch.arange(len(images)).view(-1, 1, 1)
    rows, columns = (down + pixel).unsqueeze(2), (right + pixel).unsqueeze(1)
    return padded[each, 0, rows, columns].unsqueeze(1)


def train_epoch(
    model: Any, loader: DataLoader[Any], optimizer: Any, on_step: Callable[[float], None]
) -> float:
    """Train for one pass over the loader; return the mean loss."""
    model.train()
    total = 0.0
    for images, labels in loader:
        loss = F.cross_entropy(model(jitter(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        on_step(loss.item())
    return total / len(loader)


def evaluate(model: Any, dataset: TensorDataset) -> float:
    """Return the share of a dataset that the model reads correctly."""
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in DataLoader(dataset, batch_size=64):
            correct += (model(images).argmax(1) == labels).sum().item()
    return correct / len(dataset)


def build(epochs: int, steps_per_epoch: int) -> tuple[Any, Any, Any]:
    """Return the model, its optimizer, and a learning rate that falls along a cosine."""
    model = DigitNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps_per_epoch)
    return model, optimizer, schedule


def main(epochs: int = 20) -> None:
    """Train and print a line for each epoch."""
    torch.manual_seed(0)
    train, test = load_digits()
    loader: DataLoader[Any] = DataLoader(train, batch_size=64, shuffle=True)
    model, optimizer, schedule = build(epochs, len(loader))
    for epoch in range(1, epochs + 1):
        loss = train_epoch(model, loader, optimizer, lambda _: schedule.step())
        print(f"epoch {epoch:2}  loss {loss:.4f}  test accuracy {evaluate(model, test):.2%}")


if __name__ == "__main__":
    main()
