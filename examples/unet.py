"""A U-Net that learns to tell the noise in an image, as diffusion models do, on images of made-up blobs.

python examples/unet.py --device tpu --mode captured
"""

import math

import torch
import torch.nn.functional as F
from modes import command_line, prepared, prepared_step
from torch import Tensor, nn

SIZE, LEVELS = 16, 100


class Block(nn.Module):
    """Two convolutions, told how much noise there is, and a way past them."""

    def __init__(self, before: int, after: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.first_norm, self.second_norm = nn.GroupNorm(4, after), nn.GroupNorm(4, after)
        self.condition = nn.Linear(condition, after)
        self.past = nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        inner = F.silu(self.first_norm(self.first(x))) + self.condition(condition)[:, :, None, None]
        return self.past(x) + F.silu(self.second_norm(self.second(inner)))


class UNet(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.frequencies = width // 2
        self.condition = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        self.down = nn.ModuleList([Block(1, width, width), Block(width, 2 * width, width)])
        self.shrink = nn.ModuleList([nn.Conv2d(width, width, 3, stride=2, padding=1), nn.AvgPool2d(2)])
        self.middle = Block(2 * width, 2 * width, width)
        self.dropout = nn.Dropout2d(dropout)
        self.grow = nn.ModuleList([nn.Upsample(scale_factor=2), nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)])
        self.up = nn.ModuleList([Block(4 * width, 2 * width, width), Block(3 * width, width, width)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1000) * torch.arange(self.frequencies, device=x.device) / self.frequencies)
        angles = level[:, None] * rates
        condition = self.condition(torch.cat([angles.sin(), angles.cos()], dim=1))
        skipped = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, condition)
            skipped.append(x)
            x = shrink(x)
        x = self.dropout(self.middle(x, condition))
        for block, grow in zip(self.up, self.grow, strict=True):
            x = block(torch.cat([grow(x), skipped.pop()], dim=1), condition)
        return self.out(x)


def make_batches(steps: int, batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    line = torch.linspace(-1, 1, SIZE)
    batches = []
    for _ in range(steps):
        x, y, radius = torch.rand(3, batch, 1, 1, 1, generator=generator) * 2 - 1
        distance = (line.view(1, 1, -1, 1) - y) ** 2 + (line.view(1, 1, 1, -1) - x) ** 2
        batches.append(torch.exp(-distance / (0.1 + 0.05 * radius)) * 2 - 1)
    return batches


def main(
    device: str = "cpu", mode: str = "immediate", steps: int = 50, exact: bool = False, width: int = 32, batch: int = 16
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step, and the model's state after them."""
    torch.manual_seed(0)
    device = torch.device(device)
    model = UNet(width, dropout=0.0 if exact else 0.1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=device.type != "cpu")
    left = torch.cos(torch.linspace(0, math.pi / 2, LEVELS + 1))[1:].to(device)  # of the image, at each level
    forward = prepared(model, mode)

    def step(images: Tensor, noise: Tensor, draws: Tensor) -> Tensor:
        level = (draws * LEVELS).long()
        signal = left[level].view(-1, 1, 1, 1)
        noisy = signal * images + (1 - signal**2).sqrt() * noise
        optimizer.zero_grad()
        loss = F.mse_loss(forward(noisy, level), noise)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = prepared_step(step, mode, device)
    drawn_on = torch.device("cpu") if exact else device
    losses = []
    for images in make_batches(steps, batch):
        noise, draws = torch.randn(images.shape, device=drawn_on), torch.rand(batch, device=drawn_on)
        losses.append(step(images.to(device), noise.to(device), draws.to(device)))
    return [loss.item() for loss in losses], {name: value.cpu() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    command_line(main, __doc__)
