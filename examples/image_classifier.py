"""An image classifier with BatchNorm, dropout, and augmentation on the device, on images of ten made-up classes.

python examples/image_classifier.py --device tpu --mode captured
"""

import torch
import torch.nn.functional as F
from modes import command_line, prepared, prepared_step
from torch import Tensor, nn

CLASSES, SIZE, MARGIN = 10, 16, 2


class Classifier(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *self.stage(3, width), nn.MaxPool2d(2), *self.stage(width, 2 * width), nn.MaxPool2d(2)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * width, CLASSES)

    @staticmethod
    def stage(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.dropout(self.features(images).mean((2, 3))))


def augment(images: Tensor, draws: Tensor) -> Tensor:
    """Random flips, crops and erased squares, from five numbers in [0, 1) for each image."""
    flip, top, left, erased_top, erased_left = draws.view(-1, 5, 1, 1, 1).unbind(1)
    images = torch.where(flip < 0.5, images.flip(3), images)

    batch, channels = images.shape[:2]
    line = torch.arange(SIZE, device=images.device)
    rows = (top * (2 * MARGIN + 1)).long() + line.view(1, 1, -1, 1)
    columns = (left * (2 * MARGIN + 1)).long() + line.view(1, 1, 1, -1)
    which = torch.arange(batch, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    images = F.pad(images, [MARGIN] * 4)[which, channel, rows, columns]

    def inside(start: Tensor, positions: Tensor) -> Tensor:
        distance = positions - (start * SIZE).long()
        return (distance >= 0) & (distance < SIZE // 4)

    erased = inside(erased_top, line.view(1, 1, -1, 1)) & inside(erased_left, line.view(1, 1, 1, -1))
    return images.masked_fill(erased, 0.0)


def make_batches(steps: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(CLASSES, 3, SIZE, SIZE, generator=generator)
    batches = []
    for _ in range(steps):
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        batches.append((patterns[labels] + torch.randn(batch, 3, SIZE, SIZE, generator=generator), labels))
    return batches


def main(
    device: str = "cpu", mode: str = "immediate", steps: int = 50, exact: bool = False, width: int = 32, batch: int = 64
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step, last that of one more batch in evaluation; and the model's state after them."""
    torch.manual_seed(0)
    device = torch.device(device)
    model = Classifier(width, dropout=0.0 if exact else 0.2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    forward = prepared(model, mode)

    def step(images: Tensor, labels: Tensor, draws: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(augment(images, draws)), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = prepared_step(step, mode, device)
    *training, (images, labels) = make_batches(steps + 1, batch)
    losses = []
    for batch_images, batch_labels in training:
        draws = torch.rand(batch, 5, device="cpu" if exact else device)
        losses.append(step(batch_images.to(device), batch_labels.to(device), draws.to(device)))
    model.eval()
    with torch.no_grad():
        losses.append(F.cross_entropy(forward(images.to(device)), labels.to(device)))
    return [loss.item() for loss in losses], {name: value.cpu() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    command_line(main, __doc__)
