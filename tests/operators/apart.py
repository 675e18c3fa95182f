"""Entries of the operator database that do not pass as the others do, and why: `test_operators.py` sees that each
raises an error of ours, or has nothing to compare, and that none is listed that passes."""

from __future__ import annotations

COMPLEX = "complex-valued only, in its samples of CPUs"
DATA_DEPENDENT = "data-dependent: a shape, or what Python does, depends on the values of a tensor"
NO_CPU = "PyTorch has it on no CPU, so that there is nothing to compare with"
SPARSE = "sparse tensors"
NOT_YET_HALF_COMPLEX = "not yet: complex numbers of 16 bits each"

_GROUPS: dict[str, tuple[str, ...]] = {
    COMPLEX: ("imag", "istft", "nn.functional.silu.complex", "view_as_real"),
    DATA_DEPENDENT: (
        "allclose",
        "argwhere",
        "bincount",
        "equal",
        "item",
        "masked_select",
        "nonzero",
        "tensor_split",
        "unique",
        "unique_consecutive",
    ),
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
    NOT_YET_HALF_COMPLEX: ("chalf",),
    SPARSE: ("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"),
}

APART = {name: reason for reason, names in _GROUPS.items() for name in names}
"""Entry -> why."""
