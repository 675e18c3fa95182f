"""`torch.autocast("tpu")`: the dtypes that operators compute in, by the lists that PyTorch publishes for other devices.

What multiplies matrices runs in the autocast dtype, what needs range or precision in fp32, and what takes several
tensors in the widest of theirs; everything else in the dtype it is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, library
from torch.utils._pytree import tree_leaves, tree_map

_LOWER = (
    *("_convolution", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "conv1d", "conv2d"),
    *("conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution"),
    *("einsum", "gru_cell", "linalg_multi_dot", "linalg_vecdot", "linear", "lstm_cell", "matmul", "mm", "mv"),
    *("prelu", "rnn_relu_cell", "rnn_tanh_cell", "scaled_dot_product_attention"),
)

_FP32 = (
    *("acos", "asin", "binary_cross_entropy_with_logits", "cdist", "cosh", "cosine_embedding_loss", "cumprod"),
    *("cosine_similarity", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss"),
    *("huber_loss", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "log_softmax.int"),
    *("logsumexp", "margin_ranking_loss", "mse_loss", "multi_margin_loss", "multilabel_margin_loss"),
    *("native_layer_norm", "nll_loss", "nll_loss2d", "norm.Scalar", "norm.ScalarOpt_dim", "pdist", "poisson_nll_loss"),
    *("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "prod", "prod.dim_int", "reciprocal", "renorm"),
    *("rms_norm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax.int", "softplus", "sum"),
    *("sum.dim_IntList", "tan", "triplet_margin_loss"),
)

_WIDEST = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "grid_sampler", "index_put"),
    *("scatter_add", "stack", "tensordot", "vdot"),
)

_KEY = torch._C.DispatchKey.AutocastPrivateUse1
_EXCLUDED = torch._C.DispatchKeySet(_KEY)


def register_autocast(operators: library.Library) -> None:
    """Register these kernels, and PyTorch's default dtype: bfloat16."""
    for names, dtype in ((_LOWER, lower_dtype), (_FP32, lambda _: torch.float32), (_WIDEST, widest_dtype)):
        for name in names:
            operators.impl(name, _kernel(name, dtype), "AutocastPrivateUse1")
    operators.impl("binary_cross_entropy", _refuse, "AutocastPrivateUse1")
    torch.set_autocast_dtype("tpu", torch.bfloat16)


def lower_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """What `torch.autocast("tpu", dtype=...)` says."""
    return torch.get_autocast_dtype("tpu")


def widest_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """To which all of them can be cast."""
    return functools.reduce(torch.promote_types, {x.dtype for x in tensors}, torch.get_autocast_dtype("tpu"))


def _kernel(name: str, dtype: Callable[[Iterable[Tensor]], torch.dtype]) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def run(*args: Any, **kwargs: Any) -> Any:
        cast = dtype([x for x in tree_leaves((args, kwargs)) if _is_castable(x)])
        args, kwargs = tree_map(lambda x: x.to(cast) if _is_castable(x) else x, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            return operator(*args, **kwargs)

    return run


def _is_castable(x: Any) -> bool:
    """float64 stays what it is, as on other devices."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == "tpu"


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy overflows in a narrow dtype and is refused under autocast; use "
        "binary_cross_entropy_with_logits, or leave autocast around it"
    )
