"""A mixture of experts in place of a feed-forward network (Shazeer et al. 2017), dropless: every token reaches all the
experts that it chose, whatever their load.

Suffixes: B batch, L sequence, T tokens (B * L), D model width, F an expert's hidden width, E experts, C experts that a
token chooses, R rows (T * C, one for each choice, sorted by expert).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wholestep.config.node import Node
from wholestep.errors import ConfigError
from wholestep.models.layers.initialization import init_projection, residual_std


@dataclass(frozen=True, kw_only=True)
class RouteScore(Node):
    """What an expert's SwiGLU passes to its down projection, weighted by the router's scores, whatever computes it.
    Builds a module `forward(gate_RF, up_RF, scores_R) -> hidden_RF` in gate's dtype; scores are fp32, and so is what is
    computed. More dimensions before R are allowed, of `gate_RF` and `up_RF`.

    The down projection is linear, so that to weight what enters it is to weight the expert's output. But the gradient
    of a score is then a sum over F of what the gradients of the projections need anyway, and no output of an expert,
    the largest array of a layer, is needed in the backward pass (as in Megatron-Core's grouped experts).
    """


class WeightedSwiGLU(nn.Module):
    """The product written out."""

    @dataclass(frozen=True, kw_only=True)
    class Config(RouteScore, name="weighted_swiglu"):
        """Plain PyTorch; its gradient keeps fp32 copies of what it is given."""

        def build(self) -> WeightedSwiGLU:
            return WeightedSwiGLU()

    def forward(self, gate_RF: Tensor, up_RF: Tensor, scores_R: Tensor) -> Tensor:
        return (F.silu(gate_RF.float()) * up_RF.float() * scores_R.unsqueeze(-1)).to(gate_RF.dtype)


@dataclass(frozen=True, kw_only=True)
class ExpertFeedForward(Node):
    """All experts' SwiGLUs, whatever computes them. Builds, with the module that a `RouteScore` builds, a module
    `forward(x_RD, scores_R, group_sizes_E, gate_EFD, up_EFD, down_EDF) -> out_RD` in x's dtype.

    `group_sizes_E` (integers) adds up to R: the first rows are the first expert's, and so on; an expert may have none.
    """


class EveryExpert(nn.Module):
    """Every expert on every row, of which the row's own is taken: the reference that kernels are compared against."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ExpertFeedForward, name="every_expert"):
        """Plain PyTorch; E times the arithmetic and memory that is needed."""

        def build(self, route_score: nn.Module) -> EveryExpert:
            return EveryExpert(route_score)

    def __init__(self, route_score: nn.Module) -> None:
        super().__init__()
        self.route_score = route_score

    def forward(
        self,
        x_RD: Tensor,
        scores_R: Tensor,
        group_sizes_E: Tensor,
        gate_EFD: Tensor,
        up_EFD: Tensor,
        down_EDF: Tensor,
    ) -> Tensor:
        ends_E = group_sizes_E.cumsum(0)
        index_R = torch.arange(x_RD.shape[0], device=x_RD.device)
        own_ER = (index_R < ends_E[:, None]) & (index_R >= (ends_E - group_sizes_E)[:, None])
        gate_ERF, up_ERF = (x_RD @ weight_EFD.transpose(1, 2) for weight_EFD in (gate_EFD, up_EFD))
        hidden_ERF = self.route_score(gate_ERF, up_ERF, scores_R)
        out_ERD = hidden_ERF @ down_EDF.transpose(1, 2)
        return torch.where(own_ER[:, :, None], out_ERD, 0.0).sum(0)


class Router(nn.Module):
    """Which experts a token goes to, and how much each counts: x_TD -> probabilities_TE, choices_TC, scores_TC.

    Scores are the chosen experts' softmax probabilities, in fp32. `bias_E`, where there is one, is added to the
    probabilities for the choice alone.
    """

    def __init__(self, config: MixtureOfExperts.Config, dim: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, dim))

    def init_weights(self) -> None:
        init_projection(self.weight)

    def forward(self, x_TD: Tensor, bias_E: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        probabilities_TE = F.linear(x_TD, self.weight).float().softmax(-1)
        preference_TE = probabilities_TE.detach()
        if bias_E is not None:
            preference_TE = preference_TE + bias_E
        choices_TC = preference_TE.topk(self.config.num_chosen).indices
        # A comparison and a sum instead of a gather, whose gradient would be a scatter.
        chosen_TCE = chosen_mask(choices_TC, self.config.num_experts)
        scores_TC = torch.where(chosen_TCE, probabilities_TE[:, None], 0.0).sum(-1)
        if self.config.normalize_scores:
            scores_TC = scores_TC / scores_TC.sum(-1, keepdim=True)
        return probabilities_TE, choices_TC, scores_TC


class MixtureOfExperts(nn.Module):
    """x_BLD -> out_BLD in x's dtype; and balance_B, fp32, the term of each row that is to be minimized as well: None
    where there is none, and in evaluation.

    Weights of all experts lie one under the other, so that any number of devices shares them: `gate_proj` and `up_proj`
    are [E * F, D], `down_proj` is [E * D, F].

    Buffers: `tokens_per_expert`, int64 [E], says how many choices each expert had in the last training step, over all
    devices and microbatches; `counted` is that of the step that is going on.
    """

    buffer_reductions: ClassVar[dict[str, str]] = {"counted": "sum"}

    @dataclass(frozen=True, kw_only=True)
    class Config(Node):
        """Attributes:
        hidden_dim: of one expert.
        num_experts: how many there are.
        num_chosen: how many a token goes to.
        normalize_scores: whether a token's scores add up to 1.
        balance: how experts are kept from being overloaded. `loss` has a term to minimize, for each row
            `balance_rate * E * sum over experts of (choices a token, times mean probability)`, whose sum is C where all
            are equal (Fedus et al. 2021, section 2.2; a row at a time, so that it does not depend on which rows a
            device has; of several layers the mean counts). `bias` adds, after every step, `balance_rate` times the sign
            of what an expert's load was short of the mean to what its choice is biased by (Wang et al. 2024,
            arXiv:2408.15664).
        balance_rate: of either.
        inner: the experts' matrix products.
        route_score: how the router's scores weight what an expert computes.
        """

        hidden_dim: int
        num_experts: int
        num_chosen: int
        normalize_scores: bool = True
        balance: Literal["loss", "bias", "none"] = "loss"
        balance_rate: float = 1e-3
        inner: ExpertFeedForward = field(default_factory=EveryExpert.Config)
        route_score: RouteScore = field(default_factory=WeightedSwiGLU.Config)

        def build(self, *, dim: int, num_layers: int) -> MixtureOfExperts:
            if not 1 <= self.num_chosen <= self.num_experts:
                raise ConfigError(f"num_chosen is {self.num_chosen}; it is from 1 to num_experts={self.num_experts}")
            return MixtureOfExperts(self, dim, num_layers)

        def num_parameters(self, dim: int) -> int:
            return self.num_experts * dim * (3 * self.hidden_dim + 1)

        def flops_per_token(self, dim: int) -> float:
            """Forward and backward: 6 a weight of the router and of the experts that a token is sent to."""
            return 6 * dim * (3 * self.hidden_dim * self.num_chosen + self.num_experts)

    def __init__(self, config: Config, dim: int, num_layers: int) -> None:
        super().__init__()
        self.config = config
        self.init_std = residual_std(num_layers)
        experts, hidden = config.num_experts, config.hidden_dim
        self.router = Router(config, dim)
        self.gate_proj = nn.Parameter(torch.empty(experts * hidden, dim))
        self.up_proj = nn.Parameter(torch.empty(experts * hidden, dim))
        self.down_proj = nn.Parameter(torch.empty(experts * dim, hidden))
        self.inner = config.inner.build(config.route_score.build())
        if config.balance == "bias":
            self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("counted", torch.zeros(experts, dtype=torch.int64))
        self.register_buffer("tokens_per_expert", torch.zeros(experts, dtype=torch.int64))

    def init_weights(self) -> None:
        self.router.init_weights()
        init_projection(self.gate_proj)
        init_projection(self.up_proj)
        init_projection(self.down_proj, self.init_std)
        for buffer in self.buffers(recurse=False):
            nn.init.zeros_(buffer)

    def forward(self, x_BLD: Tensor) -> tuple[Tensor, Tensor | None]:
        config, (B, L, D) = self.config, x_BLD.shape
        x_TD = x_BLD.flatten(0, 1)
        probabilities_TE, choices_TC, scores_TC = self.router(x_TD, self.bias if config.balance == "bias" else None)
        with torch.no_grad():
            chosen_BLE = chosen_mask(choices_TC, config.num_experts).sum(1).view(B, L, -1)
            group_sizes_E = chosen_BLE.sum((0, 1))
            if self.training:
                self.counted += group_sizes_E
            order_R = choices_TC.flatten().argsort(stable=True)
            place_R = order_R.argsort()
        balance_B = None
        if self.training and config.balance == "loss":
            mean_choices_BE = chosen_BLE.float().mean(1)
            mean_probability_BE = probabilities_TE.view(B, L, -1).mean(1)
            rate = config.balance_rate * config.num_experts
            balance_B = rate * (mean_choices_BE * mean_probability_BE).sum(-1)
        rows_RD = _SendRows.apply(x_TD, order_R, place_R)
        gate_EFD, up_EFD, down_EDF = (
            weight.view(config.num_experts, -1, weight.shape[1])
            for weight in (self.gate_proj, self.up_proj, self.down_proj)
        )
        scores_R = _SendRows.apply(scores_TC.flatten(), order_R, place_R)
        rows_RD = self.inner(rows_RD, scores_R, group_sizes_E, gate_EFD, up_EFD, down_EDF)
        return _ReturnRows.apply(rows_RD, order_R, place_R, B * L).view(B, L, D), balance_B

    def after_step(self, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The new values of buffers once a training step has counted all its tokens (`capture_train_step` calls it).
        Those of several layers may come as one, their last dimension E."""
        counted = buffers["counted"]
        after = {"tokens_per_expert": counted, "counted": torch.zeros_like(counted)}
        if self.config.balance == "bias":
            short = counted.float().mean(-1, keepdim=True) - counted
            after["bias"] = buffers["bias"] + self.config.balance_rate * short.sign()
        return after


def chosen_mask(choices_TC: Tensor, num_experts: int) -> Tensor:
    """bool [T, C, E]: which expert each choice is."""
    return choices_TC.unsqueeze(-1) == torch.arange(num_experts, device=choices_TC.device)


class _SendRows(torch.autograd.Function):
    """x_TD (or x_T) -> rows_RD: each token as often as it chose, in the experts' order. The gradient gathers where that
    of indexing would scatter; so does that of `_ReturnRows`."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, order_R: Tensor, place_R: Tensor) -> Tensor:
        ctx.save_for_backward(place_R)
        ctx.tokens = x_TD.shape[0]
        return _sent(x_TD, order_R)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None, None]:
        (place_R,) = ctx.saved_tensors
        return _returned(grad_RD, place_R, ctx.tokens), None, None


class _ReturnRows(torch.autograd.Function):
    """rows_RD -> out_TD: the sum of the rows of each token."""

    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, order_R: Tensor, place_R: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(order_R)
        return _returned(rows_RD, place_R, tokens)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor, None, None, None]:
        (order_R,) = ctx.saved_tensors
        return _sent(grad_TD, order_R), None, None, None


def _sent(x_TD: Tensor, order_R: Tensor) -> Tensor:
    return x_TD[order_R // (order_R.shape[0] // x_TD.shape[0])]


def _returned(rows_RD: Tensor, place_R: Tensor, tokens: int) -> Tensor:
    return rows_RD[place_R].view(tokens, -1, *rows_RD.shape[1:]).sum(1)
