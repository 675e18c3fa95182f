"""A GAN, two networks with an optimizer each, on images of made-up stripes.

python examples/gan.py --device tpu --mode captured
"""

import math

import torch
import torch.nn.functional as F
from modes import command_line, prepared, prepared_step
from torch import Tensor, nn

SIZE, LATENT = 16, 16


def make_generator(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(LATENT, 2 * width * 16, bias=False),
        nn.Unflatten(1, (2 * width, 4, 4)),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def make_discriminator(width: int, dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 1),
    )


def make_batches(steps: int, batch: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    line = torch.linspace(-1, 1, SIZE)
    batches = []
    for _ in range(steps):
        angle, phase = torch.rand(2, batch, 1, 1, 1, generator=generator) * math.pi
        across = line.view(1, 1, -1, 1) * angle.cos() + line.view(1, 1, 1, -1) * angle.sin()
        batches.append(torch.sin(6 * across + phase))
    return batches


def main(
    device: str = "cpu", mode: str = "immediate", steps: int = 50, exact: bool = False, width: int = 32, batch: int = 32
) -> tuple[list[float], dict[str, Tensor]]:
    """The discriminator's and the generator's loss of each step, one after the other, and both states after them."""
    torch.manual_seed(0)
    device = torch.device(device)
    models = nn.ModuleDict(
        {"generator": make_generator(width), "discriminator": make_discriminator(width, 0.0 if exact else 0.2)}
    ).to(device)
    of_generator, of_discriminator = (
        torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999), capturable=device.type != "cpu")
        for model in models.values()
    )
    generate, discriminate = (prepared(model, mode) for model in models.values())

    def loss_of(judged: Tensor, real: bool) -> Tensor:
        return F.binary_cross_entropy_with_logits(judged, torch.full_like(judged, float(real)))

    def step(images: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
        made = generate(latent)
        of_discriminator.zero_grad()
        telling = loss_of(discriminate(images), real=True) + loss_of(discriminate(made.detach()), real=False)
        telling.backward()
        of_discriminator.step()
        of_generator.zero_grad()
        fooling = loss_of(discriminate(made), real=True)
        fooling.backward()
        of_generator.step()
        return telling.detach(), fooling.detach()

    step = prepared_step(step, mode, device)
    losses: list[Tensor] = []
    for images in make_batches(steps, batch):
        latent = torch.randn(batch, LATENT, device="cpu" if exact else device)
        losses += step(images.to(device), latent.to(device))
    return [loss.item() for loss in losses], {name: value.cpu() for name, value in models.state_dict().items()}


if __name__ == "__main__":
    command_line(main, __doc__)
