"""Convolutions as modules, under torch's names."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pullback.errors import UnsupportedError
from pullback.nn import init
from pullback.nn.base.module import Module
from pullback.nn.base.space import Ints, Taps, each, literal
from pullback.nn.spatial import convolution as C
from pullback.nn.spatial.padding import pad
from pullback.tensor.face.tensor import Tensor, check_device
from pullback.tensor.shaped import shaped
from pullback.tensor.values import views as V

MODES = ("zeros", "reflect", "replicate", "circular")


class _Conv(Module):
    """``y[n, o, y] = sum[c, k] x[n, c, y stride + k dilation - padding] * w[o, c, k] + b[o]``"""

    space: ClassVar[int]
    turned: ClassVar[bool] = False

    def __init_subclass__(cls, space: int = 0, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.space = space

    @shaped(
        "",
        where="int(in_channels) >= 1, int(out_channels) >= 1, int(groups) >= 1, "
        "in_channels % groups == 0, out_channels % groups == 0, int(kernel_size) >= 1, "
        "int(stride) >= 1, int(padding) >= 0, int(dilation) >= 1",
    )
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_device(device)
        if padding_mode not in MODES[: 1 if self.turned else None]:
            raise UnsupportedError(f"padding_mode={padding_mode!r}", code="E312")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = each(kernel_size, self.space, "kernel_size")
        self.stride = each(stride, self.space, "stride")
        self.padding = padding if isinstance(padding, str) else each(padding, self.space, "padding")
        self.dilation = each(dilation, self.space, "dilation")
        self.groups = groups
        self.padding_mode = padding_mode
        first, second = (in_channels, out_channels) if self.turned else (out_channels, in_channels)
        shape = (first, second // groups, *self.kernel_size)
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        self.weight = init.new_uniform(shape, bound, dtype)
        start = init.new_uniform((out_channels,), bound, dtype) if bias else None
        self.register_parameter("bias", start)

    def forward(self, input: Tensor) -> Tensor:
        padding: Ints | str = self.padding
        if self.padding_mode != "zeros":
            ends = C.margins(padding, self.kernel_size, self.stride, self.dilation)
            around = [end for both in reversed(ends) for end in both]
            input, padding = pad(input, around, self.padding_mode), 0
        return C.conv(
            self.space,
            input,
            self.weight,
            self.bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
        )

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        return f"{shown}, stride={self.stride}, padding={self.padding!r}, groups={self.groups}"


class Conv1d(_Conv, space=1):
    """`conv1d` of a weight and a bias of its own.

    Example:
        >>> nn.Conv1d(2, 5, 3, padding=1)(pb.ones((1, 2, 8))).shape
        (1, 5, 8)
    """


class Conv2d(_Conv, space=2):
    """`conv2d` of a weight and a bias of its own.

    Example:
        >>> nn.Conv2d(2, 5, 3, padding=1)(pb.ones((1, 2, 8, 8))).shape
        (1, 5, 8, 8)
    """


class Conv3d(_Conv, space=3):
    """`conv3d` of a weight and a bias of its own.

    Example:
        >>> nn.Conv3d(2, 5, 3, padding=1)(pb.ones((1, 2, 4, 4, 4))).shape
        (1, 5, 4, 4, 4)
    """


class _Turned(_Conv):
    """The adjoint of a convolution in its input, w of shape (in, out / groups, ..)."""

    turned = True
    padding: tuple[int, ...]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        device: object = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.output_padding = each(output_padding, self.space, "output_padding")

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        more = self.output_padding if output_size is None else self._left(input, output_size)
        return C.conv_transpose(
            self.space,
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            more,
            self.groups,
            self.dilation,
        )

    def _left(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """The output padding that gives `output_size`. Raises: ShapeError where none does."""
        wanted = tuple(output_size)[-self.space :]
        room = literal("conv_transpose", input.shape[-self.space :])
        rows = zip(room, self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        least = [Taps(n, k, s, p, 0, d).count for n, k, s, p, d in rows]
        more = tuple(n - m for n, m in zip(wanted, least, strict=True))
        limits = zip(more, self.stride, self.dilation, strict=True)
        if not all(0 <= m < max(s, d) for m, s, d in limits):
            raise V.fail(
                f"output_size {wanted} of {room}", f"the least is {tuple(least)}", code="E126"
            )
        return more


class ConvTranspose1d(_Turned, space=1):
    """`conv_transpose1d` of a weight and a bias of its own.

    Example:
        >>> nn.ConvTranspose1d(2, 5, 3, stride=2)(pb.ones((1, 2, 8))).shape
        (1, 5, 17)
    """


class ConvTranspose2d(_Turned, space=2):
    """`conv_transpose2d` of a weight and a bias of its own.

    Example:
        >>> nn.ConvTranspose2d(2, 5, 3, stride=2)(pb.ones((1, 2, 8, 8))).shape
        (1, 5, 17, 17)
    """


class ConvTranspose3d(_Turned, space=3):
    """`conv_transpose3d` of a weight and a bias of its own.

    Example:
        >>> nn.ConvTranspose3d(2, 5, 3, stride=2)(pb.ones((1, 2, 4, 4, 4))).shape
        (1, 5, 9, 9, 9)
    """
