"""Entries of the operator database that do not pass as the others do, and why: `test_operators.py` sees that nothing of
those in `APART` passes, and that nothing of those in `PARTLY` is wrong."""

from __future__ import annotations

from collections.abc import Mapping

BITS = "computes with the bits of numbers of 64 bits, and programs carry 32"
COMPLEX = "complex-valued only, in its samples of CPUs"
DATA_DEPENDENT = "data-dependent: a shape, or what Python does, depends on the values of a tensor"
HALF_COMPLEX = "complex numbers of 16 bits each"
INT64 = "fills with the least or the greatest integer of 64 bits, and programs carry 32"
NO_CPU = "PyTorch has it on no CPU, so that there is nothing to compare with"
NOT_FINITE = "PyTorch's bfloat16 is not finite"
OUTSIDE = "reads memory outside of the tensor that it is given"
SPARSE = "sparse tensors"
SYMMETRIC_INDEFINITE = "not yet: the factorization of matrices that are symmetric and indefinite"
UNKNOWN_SHAPE = "the shapes that PyTorch's tracing gives it are not those of its results"


def _by_entry(groups: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {name: reason for reason, names in groups.items() for name in names}


APART = _by_entry(
    {
        COMPLEX: ("imag", "istft", "nn.functional.silu.complex", "view_as_real"),
        DATA_DEPENDENT: (
            "allclose",
            "argwhere",
            "bincount",
            "combinations",
            "corrcoef",
            "cov",
            "equal",
            "item",
            "masked_select",
            "nn.functional.gaussian_nll_loss",
            "nonzero",
            "unique",
            "unique_consecutive",
        ),
        HALF_COMPLEX: ("chalf",),
        BITS: ("hash_tensor",),
        NO_CPU: (
            "jiterator_2inputs_2outputs",
            "jiterator_4inputs_with_extra_args",
            "jiterator_binary",
            "jiterator_binary_return_by_ref",
            "jiterator_unary",
            "nn.functional.batch_norm.without_cudnn",
            "torch._scaled_mm",
            "torch._scaled_mm_v2",
            "torch.ops.aten._efficient_attention_forward",
            "torch.ops.aten._flash_attention_forward",
        ),
        OUTSIDE: ("as_strided.partial_views",),
        SPARSE: ("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"),
        SYMMETRIC_INDEFINITE: ("linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"),
    }
)
"""Entry -> why none of its samples can be compared."""

PARTLY = _by_entry(
    {
        DATA_DEPENDENT: (
            "linalg.lstsq",
            "linalg.lstsq.grad_oriented",
            "narrow",
            "nn.functional.one_hot",
            "repeat_interleave",
            "tensor_split",
        ),
        INT64: ("masked.amax", "masked.amin", "masked.argmax", "masked.argmin", "masked.logsumexp"),
        NOT_FINITE: ("matrix_exp",),
        UNKNOWN_SHAPE: ("nn.functional.embedding_bag",),
    }
)
"""Entry -> why some of its samples are refused."""
