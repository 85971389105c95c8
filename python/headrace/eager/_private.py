"""Names of PyTorch that the eager door needs and that are not part of its public API: all of them.

Attributes that only say what somebody else has done to an object (what learning-rate schedulers
leave at an optimizer) are not here: where they are missing, nothing has been done.
"""
from __future__ import annotations

import operator

import torch

from headrace._errors import HeadraceError

NAMES = (
    "Tensor._version",  # changes in place, counted as autograd does
    "Tensor._base", "Tensor._is_view",  # whether that count is the storage's
    "UntypedStorage._cdata",  # one number for all Python objects of a storage
    "optim.Optimizer.profile_hook_step",  # calls the hooks of users around a step
    "_C._functorch.is_functorch_wrapped_tensor",  # what torch.vmap and torch.func compute with
)


def check() -> None:
    """HeadraceError when this version of torch lacks one of them."""
    for name in NAMES:
        try:
            operator.attrgetter(name)(torch)
        except AttributeError:
            raise HeadraceError(f"torch {torch.__version__} has no torch.{name}, which "
                                "headrace.fit needs: use a version from 2.6 to 2.15",
                                "unsupported") from None
