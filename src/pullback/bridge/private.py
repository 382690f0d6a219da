"""Names of PyTorch that it does not promise to keep, and operators cannot do without.

Tested with PyTorch 2.13: an operator that is differentiable below its name, at each level of
`torch.func`, is made of these.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch._functorch.autograd_function
from torch.autograd import forward_ad

from pullback.errors import UnsupportedError

TESTED = "2.13"


def private(home: Any, path: str) -> Any:
    """``home.path``. Raises: UnsupportedError where this PyTorch has none."""
    try:
        return reduce(getattr, path.split("."), home)
    except AttributeError as error:
        raise UnsupportedError(
            f"PyTorch {torch.__version__} has no `{path}`, which operators are made of",
            help=f"pip install 'torch=={TESTED}.*', the version that they are tested with",
            code="E344",
        ) from error


SingleLevelFunction = private(torch, "autograd.function._SingleLevelFunction")
single_level = private(torch, "_functorch.autograd_function.enable_single_level_autograd_function")
transformed = private(torch, "_C._are_functorch_transforms_active")
any_requires_grad = private(torch, "_C._any_requires_grad")
dispatch_modes = private(torch, "_C._len_torch_dispatch_stack")
has_memory = private(torch, "_C._has_storage")
BelowAutograd = private(torch, "_C._AutoDispatchBelowAutograd")
NoModes = private(torch, "_C._DisableTorchDispatch")
forward_mode = private(forward_ad, "_set_fwd_grad_enabled")
private(forward_ad, "_current_level")  # read at each call: it is a number
empty_strided = private(torch, "_C._dynamo.guards._empty_strided_cpu")
