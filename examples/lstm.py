"""An LSTM language model that carries its state from one piece of a text to the next, on brackets that must match.

python examples/lstm.py --device tpu --mode captured
"""

import torch
import torch.nn.functional as F
from modes import command_line, prepared, prepared_step
from torch import Tensor, nn

KINDS, DEPTH = 4, 8
State = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * KINDS, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 2 * KINDS)

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.lstm(self.embedding(tokens), state)
        return self.head(self.dropout(hidden)), state


def make_text(rows: int, length: int) -> Tensor:
    """Brackets of several kinds, opened and closed at random, always the right one."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(KINDS, (rows, length), generator=generator).tolist()
    opens = (torch.rand(rows, length, generator=generator) < 0.5).tolist()
    text = torch.empty(rows, length, dtype=torch.long)
    for row in range(rows):
        stack: list[int] = []
        for place in range(length):
            if not stack or (opens[row][place] and len(stack) < DEPTH):
                stack.append(kinds[row][place])
                text[row, place] = stack[-1]
            else:
                text[row, place] = KINDS + stack.pop()
    return text


def main(
    device: str = "cpu",
    mode: str = "immediate",
    steps: int = 50,
    exact: bool = False,
    width: int = 64,
    layers: int = 2,
    batch: int = 16,
    length: int = 24,
) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each step, and the model's state after them."""
    torch.manual_seed(0)
    device = torch.device(device)
    model = LanguageModel(width, layers, dropout=0.0 if exact else 0.1).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, capturable=device.type != "cpu")
    torch._dynamo.config.allow_rnn = True  # torch.compile leaves nn.LSTM out unless told
    forward = prepared(model, mode)

    def step(tokens: Tensor, labels: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        optimizer.zero_grad()
        logits, (hidden, cell) = forward(tokens, (hidden, cell))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach(), hidden.detach(), cell.detach()

    step = prepared_step(step, mode, device)
    text = make_text(batch, steps * length + 1).to(device)
    hidden, cell = torch.zeros(2, layers, batch, width, device=device).unbind()
    losses = []
    for start in range(0, steps * length, length):
        piece = text[:, start : start + length + 1]
        loss, hidden, cell = step(piece[:, :-1], piece[:, 1:], hidden, cell)
        losses.append(loss)
    return [loss.item() for loss in losses], {name: value.cpu() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    command_line(main, __doc__)
