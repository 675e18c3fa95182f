"""How projection weights start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

STD = 0.02

# A sample further than this many widths from zero is never drawn.
_CUT = 3.0


@torch.no_grad()
def init_projection(weight: Tensor, std: float = STD) -> None:
    """Fill `weight` in place from a normal distribution of width `std`, cut at three widths.

    By inverting the normal's distribution function on uniform samples: unlike the rejection sampling of
    `torch.nn.init.trunc_normal_` it never looks at a value, so it can be traced.
    """
    bound = math.erf(_CUT / math.sqrt(2.0))
    weight.uniform_(-bound, bound).erfinv_().mul_(math.sqrt(2.0) * std).clamp_(-_CUT * std, _CUT * std)


def residual_std(num_layers: int) -> float:
    """Width for the projections that write to the residual stream, of which a model has two a layer.

    The sum over 2 * num_layers such writes then has the variance of one (Radford et al. 2019, GPT-2, section 2.3).
    `num_layers` are all of the model's, or those up to and with the layer at hand where widths fall with depth.
    """
    return STD / math.sqrt(2 * num_layers)
