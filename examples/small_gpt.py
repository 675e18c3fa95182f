"""A small GPT with AdamW, gradient clipping and a learning rate schedule, on sequences that follow a hidden rule.

python examples/small_gpt.py --device tpu --mode captured
"""

import math

import torch
import torch.nn.functional as F
from modes import command_line, prepared, prepared_step
from torch import Tensor, nn

VOCABULARY, LENGTH = 61, 32


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def attention(self, x_BLD: Tensor) -> Tensor:
        shape = (*x_BLD.shape[:2], self.heads, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x_BLD).chunk(3, dim=-1))
        mixed_BNLH = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.projection(mixed_BNLH.transpose(1, 2).reshape(x_BLD.shape))

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attention(self.attention_norm(x_BLD))
        return x_BLD + self.mlp(self.mlp_norm(x_BLD))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, width // 16, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens_BL: Tensor, labels_BL: Tensor) -> Tensor:
        places = torch.arange(tokens_BL.shape[1], device=tokens_BL.device)
        x_BLD = self.dropout(self.tokens(tokens_BL) + self.positions(places))
        logits_BLV = self.head(self.norm(self.blocks(x_BLD)))
        return F.cross_entropy(logits_BLV.flatten(0, 1), labels_BL.flatten())


def make_batches(steps: int, batch: int) -> list[Tensor]:
    """Rows in which a token mostly decides the next."""
    generator = torch.Generator().manual_seed(0)
    following = torch.randperm(VOCABULARY, generator=generator)
    batches = []
    for _ in range(steps):
        rows = torch.randint(VOCABULARY, (batch, LENGTH + 1), generator=generator)
        surprising = torch.rand(batch, LENGTH + 1, generator=generator) < 0.1
        for place in range(1, LENGTH + 1):
            rows[:, place] = torch.where(surprising[:, place], rows[:, place], following[rows[:, place - 1]])
        batches.append(rows)
    return batches


def learning_rate(step: int, steps: int) -> float:
    """A warmup, then half a cosine."""
    warmup = max(steps // 10, 1)
    if step < warmup:
        return 3e-3 * (step + 1) / warmup
    return 3e-4 + 2.7e-3 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def main(
    device: str = "cpu",
    mode: str = "immediate",
    steps: int = 50,
    exact: bool = False,
    width: int = 64,
    layers: int = 3,
    batch: int = 16,
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step, and the model's state after them."""
    torch.manual_seed(0)
    device = torch.device(device)
    model = GPT(width, layers, dropout=0.0 if exact else 0.1).to(device)
    # A learning rate and step counts on the device, so that a captured step reads what they are now.
    rate = torch.tensor(0.0, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1, capturable=device.type != "cpu")
    forward = prepared(model, mode)

    def step(rows: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = forward(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = prepared_step(step, mode, device)
    losses = []
    for number, rows in enumerate(make_batches(steps, batch)):
        rate.fill_(learning_rate(number, steps))
        losses.append(step(rows.to(device)))
    return [loss.item() for loss in losses], {name: value.cpu() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    command_line(main, __doc__)
