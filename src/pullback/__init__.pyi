"""Written by scripts/stubs.py."""

import builtins
from typing import Any, overload

from pullback import fft as fft
from pullback import gguf as gguf
from pullback import linalg as linalg
from pullback import models as models
from pullback import nn as nn
from pullback import onnx as onnx
from pullback import optim as optim
from pullback import quantised as quantised
from pullback import random as random
from pullback import sparse as sparse
from pullback import special as special
from pullback import torch as torch
from pullback import triton as triton
from pullback import winograd as winograd
from pullback.backends.host.pool import get_num_threads as get_num_threads
from pullback.backends.host.pool import set_num_threads as set_num_threads
from pullback.composite.text import define as define
from pullback.config import Options as Options
from pullback.ir.dtype import DType as DType
from pullback.ir.dtype import bfloat16 as bfloat16
from pullback.ir.dtype import bool_ as bool_
from pullback.ir.dtype import dtype as dtype
from pullback.ir.dtype import float8_e4m3fn as float8_e4m3fn
from pullback.ir.dtype import float8_e5m2 as float8_e5m2
from pullback.ir.dtype import float16 as float16
from pullback.ir.dtype import float32 as float32
from pullback.ir.dtype import float64 as float64
from pullback.ir.dtype import int8 as int8
from pullback.ir.dtype import int16 as int16
from pullback.ir.dtype import int32 as int32
from pullback.ir.dtype import int64 as int64
from pullback.ir.dtype import uint8 as uint8
from pullback.ir.dtype import uint16 as uint16
from pullback.ir.dtype import uint32 as uint32
from pullback.ir.dtype import uint64 as uint64
from pullback.ir.expr import Dim as Dim
from pullback.stats.counts import bincount as bincount
from pullback.stats.counts import histc as histc
from pullback.stats.counts import histogram as histogram
from pullback.stats.curves import convolve as convolve
from pullback.stats.curves import correlate as correlate
from pullback.stats.curves import gradient as gradient
from pullback.stats.curves import interp as interp
from pullback.stats.curves import polyval as polyval
from pullback.stats.curves import unwrap as unwrap
from pullback.stats.moments import aminmax as aminmax
from pullback.stats.moments import average as average
from pullback.stats.moments import corrcoef as corrcoef
from pullback.stats.moments import count_nonzero as count_nonzero
from pullback.stats.moments import cov as cov
from pullback.stats.moments import nanmax as nanmax
from pullback.stats.moments import nanmean as nanmean
from pullback.stats.moments import nanmin as nanmin
from pullback.stats.moments import nanstd as nanstd
from pullback.stats.moments import nansum as nansum
from pullback.stats.moments import nanvar as nanvar
from pullback.stats.moments import ptp as ptp
from pullback.stats.moments import std_mean as std_mean
from pullback.stats.moments import var_mean as var_mean
from pullback.stats.order import kthvalue as kthvalue
from pullback.stats.order import median as median
from pullback.stats.order import mode as mode
from pullback.stats.order import msort as msort
from pullback.stats.order import nanmedian as nanmedian
from pullback.stats.order import nanpercentile as nanpercentile
from pullback.stats.order import nanquantile as nanquantile
from pullback.stats.order import percentile as percentile
from pullback.stats.order import quantile as quantile
from pullback.stats.places import bucketize as bucketize
from pullback.stats.places import cumulative_argmax as cumulative_argmax
from pullback.stats.places import cumulative_argmin as cumulative_argmin
from pullback.stats.places import cumulative_trapezoid as cumulative_trapezoid
from pullback.stats.places import diff as diff
from pullback.stats.places import digitize as digitize
from pullback.stats.places import searchsorted as searchsorted
from pullback.stats.places import trapezoid as trapezoid
from pullback.tensor.complex.functions import complex64 as complex64
from pullback.tensor.complex.functions import complex128 as complex128
from pullback.tensor.complex.pairs import Complex as Complex
from pullback.tensor.define.combine import associative_scan as associative_scan
from pullback.tensor.define.combine import cumulative_logsumexp as cumulative_logsumexp
from pullback.tensor.define.combine import linear_recurrence as linear_recurrence
from pullback.tensor.define.combine import reduce as reduce
from pullback.tensor.define.compute import axis as axis
from pullback.tensor.define.compute import compute as compute
from pullback.tensor.define.recurrence import recurrence as recurrence
from pullback.tensor.derive.autograd import grad as grad
from pullback.tensor.derive.autograd import value_and_grad as value_and_grad
from pullback.tensor.derive.check import check_grads as check_grads
from pullback.tensor.derive.custom import custom_jvp as custom_jvp
from pullback.tensor.derive.custom import custom_vjp as custom_vjp
from pullback.tensor.derive.differentiate import differentiate as differentiate
from pullback.tensor.derive.jacobian import hessian as hessian
from pullback.tensor.derive.jacobian import jacobian as jacobian
from pullback.tensor.derive.modes import hvp as hvp
from pullback.tensor.derive.modes import jvp as jvp
from pullback.tensor.derive.modes import vjp as vjp
from pullback.tensor.derive.vmap import vmap as vmap
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import State as State
from pullback.tensor.face.tensor import Tensor as Tensor
from pullback.tensor.forms.control import checkpoint as checkpoint
from pullback.tensor.forms.control import cond as cond
from pullback.tensor.forms.control import loop as loop
from pullback.tensor.forms.control import scan as scan
from pullback.tensor.forms.control import while_loop as while_loop
from pullback.tensor.library.creation import arange as arange
from pullback.tensor.library.creation import asarray as asarray
from pullback.tensor.library.creation import dim as dim
from pullback.tensor.library.creation import empty as empty
from pullback.tensor.library.creation import empty_like as empty_like
from pullback.tensor.library.creation import eye as eye
from pullback.tensor.library.creation import from_dlpack as from_dlpack
from pullback.tensor.library.creation import full as full
from pullback.tensor.library.creation import full_like as full_like
from pullback.tensor.library.creation import linspace as linspace
from pullback.tensor.library.creation import meshgrid as meshgrid
from pullback.tensor.library.creation import one_hot as one_hot
from pullback.tensor.library.creation import ones as ones
from pullback.tensor.library.creation import ones_like as ones_like
from pullback.tensor.library.creation import tensor as tensor
from pullback.tensor.library.creation import zeros as zeros
from pullback.tensor.library.creation import zeros_like as zeros_like
from pullback.tensor.library.ops import amax as amax
from pullback.tensor.library.ops import amin as amin
from pullback.tensor.library.ops import broadcast_arrays as broadcast_arrays
from pullback.tensor.library.ops import broadcast_to as broadcast_to
from pullback.tensor.library.ops import concat as concat
from pullback.tensor.library.ops import cumulative_max as cumulative_max
from pullback.tensor.library.ops import cumulative_min as cumulative_min
from pullback.tensor.library.ops import cumulative_prod as cumulative_prod
from pullback.tensor.library.ops import cumulative_sum as cumulative_sum
from pullback.tensor.library.ops import einsum as einsum
from pullback.tensor.library.ops import expand_dims as expand_dims
from pullback.tensor.library.ops import flip as flip
from pullback.tensor.library.ops import keep as keep
from pullback.tensor.library.ops import log_softmax as log_softmax
from pullback.tensor.library.ops import logsumexp as logsumexp
from pullback.tensor.library.ops import matmul as matmul
from pullback.tensor.library.ops import matrix_transpose as matrix_transpose
from pullback.tensor.library.ops import moveaxis as moveaxis
from pullback.tensor.library.ops import outer as outer
from pullback.tensor.library.ops import pad as pad
from pullback.tensor.library.ops import permute_dims as permute_dims
from pullback.tensor.library.ops import repeat as repeat
from pullback.tensor.library.ops import reshape as reshape
from pullback.tensor.library.ops import result_type as result_type
from pullback.tensor.library.ops import roll as roll
from pullback.tensor.library.ops import softmax as softmax
from pullback.tensor.library.ops import split as split
from pullback.tensor.library.ops import squeeze as squeeze
from pullback.tensor.library.ops import stack as stack
from pullback.tensor.library.ops import stop_gradient as stop_gradient
from pullback.tensor.library.ops import take as take
from pullback.tensor.library.ops import take_along_axis as take_along_axis
from pullback.tensor.library.ops import tensordot as tensordot
from pullback.tensor.library.ops import tile as tile
from pullback.tensor.library.ops import tril as tril
from pullback.tensor.library.ops import triu as triu
from pullback.tensor.library.ops import unstack as unstack
from pullback.tensor.library.ops import var as var
from pullback.tensor.library.products import addbmm as addbmm
from pullback.tensor.library.products import addmm as addmm
from pullback.tensor.library.products import addmv as addmv
from pullback.tensor.library.products import addr as addr
from pullback.tensor.library.products import baddbmm as baddbmm
from pullback.tensor.library.products import cdist as cdist
from pullback.tensor.library.products import cross as cross
from pullback.tensor.library.products import dist as dist
from pullback.tensor.library.products import inner as inner
from pullback.tensor.library.products import kron as kron
from pullback.tensor.library.products import pdist as pdist
from pullback.tensor.library.products import renorm as renorm
from pullback.tensor.library.scalars import allclose as allclose
from pullback.tensor.library.scalars import frexp as frexp
from pullback.tensor.library.scalars import gcd as gcd
from pullback.tensor.library.scalars import isin as isin
from pullback.tensor.library.scalars import lcm as lcm
from pullback.tensor.library.scattering import diagonal_scatter as diagonal_scatter
from pullback.tensor.library.scattering import gather as gather
from pullback.tensor.library.scattering import index_add as index_add
from pullback.tensor.library.scattering import index_copy as index_copy
from pullback.tensor.library.scattering import index_fill as index_fill
from pullback.tensor.library.scattering import index_put as index_put
from pullback.tensor.library.scattering import index_reduce as index_reduce
from pullback.tensor.library.scattering import masked_fill as masked_fill
from pullback.tensor.library.scattering import masked_scatter as masked_scatter
from pullback.tensor.library.scattering import put as put
from pullback.tensor.library.scattering import scatter as scatter
from pullback.tensor.library.scattering import scatter_add as scatter_add
from pullback.tensor.library.scattering import scatter_reduce as scatter_reduce
from pullback.tensor.library.scattering import select_scatter as select_scatter
from pullback.tensor.library.scattering import slice_scatter as slice_scatter
from pullback.tensor.library.shapes import atleast_1d as atleast_1d
from pullback.tensor.library.shapes import atleast_2d as atleast_2d
from pullback.tensor.library.shapes import atleast_3d as atleast_3d
from pullback.tensor.library.shapes import block_diag as block_diag
from pullback.tensor.library.shapes import broadcast_shapes as broadcast_shapes
from pullback.tensor.library.shapes import cartesian_prod as cartesian_prod
from pullback.tensor.library.shapes import chunk as chunk
from pullback.tensor.library.shapes import column_stack as column_stack
from pullback.tensor.library.shapes import combinations as combinations
from pullback.tensor.library.shapes import diag as diag
from pullback.tensor.library.shapes import diag_embed as diag_embed
from pullback.tensor.library.shapes import diagflat as diagflat
from pullback.tensor.library.shapes import diagonal as diagonal
from pullback.tensor.library.shapes import dstack as dstack
from pullback.tensor.library.shapes import flatten as flatten
from pullback.tensor.library.shapes import geomspace as geomspace
from pullback.tensor.library.shapes import hstack as hstack
from pullback.tensor.library.shapes import logspace as logspace
from pullback.tensor.library.shapes import narrow as narrow
from pullback.tensor.library.shapes import ravel as ravel
from pullback.tensor.library.shapes import rot90 as rot90
from pullback.tensor.library.shapes import select as select
from pullback.tensor.library.shapes import swapaxes as swapaxes
from pullback.tensor.library.shapes import tensor_split as tensor_split
from pullback.tensor.library.shapes import tril_indices as tril_indices
from pullback.tensor.library.shapes import triu_indices as triu_indices
from pullback.tensor.library.shapes import unflatten as unflatten
from pullback.tensor.library.shapes import unfold as unfold
from pullback.tensor.library.shapes import vander as vander
from pullback.tensor.library.shapes import vstack as vstack
from pullback.tensor.library.sorting import argsort as argsort
from pullback.tensor.library.sorting import sort as sort
from pullback.tensor.library.sorting import topk as topk
from pullback.tensor.record.trace import Cell as Cell
from pullback.tensor.run.host import Feeder as Feeder
from pullback.tensor.run.host import Receiver as Receiver
from pullback.tensor.run.images import load_image as load_image
from pullback.tensor.run.program import jit as jit
from pullback.tensor.run.scheduled import schedule as schedule
from pullback.tensor.values.reduction import Axes

__all__: list[str]

@overload
def abs(x: ScalarHandle) -> ScalarHandle: ...
@overload
def abs(x: Any) -> Tensor: ...
@overload
def acos(x: ScalarHandle) -> ScalarHandle: ...
@overload
def acos(x: Any) -> Tensor: ...
@overload
def acosh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def acosh(x: Any) -> Tensor: ...
@overload
def add(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def add(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def add(x1: Any, x2: Any) -> Tensor: ...
@overload
def addcdiv(x: ScalarHandle, x1: Any, x2: Any, *, value: float = 1) -> ScalarHandle: ...
@overload
def addcdiv(x: Any, x1: ScalarHandle, x2: Any, *, value: float = 1) -> ScalarHandle: ...
@overload
def addcdiv(x: Any, x1: Any, x2: ScalarHandle, *, value: float = 1) -> ScalarHandle: ...
@overload
def addcdiv(x: Any, x1: Any, x2: Any, *, value: float = 1) -> Tensor: ...
@overload
def addcmul(x: ScalarHandle, x1: Any, x2: Any, *, value: float = 1) -> ScalarHandle: ...
@overload
def addcmul(x: Any, x1: ScalarHandle, x2: Any, *, value: float = 1) -> ScalarHandle: ...
@overload
def addcmul(x: Any, x1: Any, x2: ScalarHandle, *, value: float = 1) -> ScalarHandle: ...
@overload
def addcmul(x: Any, x1: Any, x2: Any, *, value: float = 1) -> Tensor: ...
@overload
def all(
    x: ScalarHandle, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def all(
    x: Any, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def any(
    x: ScalarHandle, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def any(
    x: Any, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def argmax(
    x: ScalarHandle, axis: int | None = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def argmax(
    x: Any, axis: int | None = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def argmin(
    x: ScalarHandle, axis: int | None = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def argmin(
    x: Any, axis: int | None = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def asin(x: ScalarHandle) -> ScalarHandle: ...
@overload
def asin(x: Any) -> Tensor: ...
@overload
def asinh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def asinh(x: Any) -> Tensor: ...
@overload
def astype(x: ScalarHandle, dtype: Any, *, copy: builtins.bool = True) -> ScalarHandle: ...
@overload
def astype(x: Any, dtype: Any, *, copy: builtins.bool = True) -> Tensor: ...
@overload
def atan(x: ScalarHandle) -> ScalarHandle: ...
@overload
def atan(x: Any) -> Tensor: ...
@overload
def atan2(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def atan2(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def atan2(x1: Any, x2: Any) -> Tensor: ...
@overload
def atanh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def atanh(x: Any) -> Tensor: ...
@overload
def bitwise_and(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def bitwise_and(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def bitwise_and(x1: Any, x2: Any) -> Tensor: ...
@overload
def bitwise_invert(x: ScalarHandle) -> ScalarHandle: ...
@overload
def bitwise_invert(x: Any) -> Tensor: ...
@overload
def bitwise_left_shift(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def bitwise_left_shift(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def bitwise_left_shift(x1: Any, x2: Any) -> Tensor: ...
@overload
def bitwise_or(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def bitwise_or(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def bitwise_or(x1: Any, x2: Any) -> Tensor: ...
@overload
def bitwise_right_shift(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def bitwise_right_shift(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def bitwise_right_shift(x1: Any, x2: Any) -> Tensor: ...
@overload
def bitwise_xor(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def bitwise_xor(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def bitwise_xor(x1: Any, x2: Any) -> Tensor: ...
@overload
def ceil(x: ScalarHandle) -> ScalarHandle: ...
@overload
def ceil(x: Any) -> Tensor: ...
@overload
def clip(x: ScalarHandle, min: Any = None, max: Any = None) -> ScalarHandle: ...
@overload
def clip(x: Any, min: Any = None, max: Any = None) -> Tensor: ...
@overload
def copysign(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def copysign(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def copysign(x1: Any, x2: Any) -> Tensor: ...
@overload
def cos(x: ScalarHandle) -> ScalarHandle: ...
@overload
def cos(x: Any) -> Tensor: ...
@overload
def cosh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def cosh(x: Any) -> Tensor: ...
@overload
def deg2rad(x: ScalarHandle) -> ScalarHandle: ...
@overload
def deg2rad(x: Any) -> Tensor: ...
@overload
def divide(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def divide(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def divide(x1: Any, x2: Any) -> Tensor: ...

e: float

@overload
def equal(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def equal(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def equal(x1: Any, x2: Any) -> Tensor: ...
@overload
def erf(x: ScalarHandle) -> ScalarHandle: ...
@overload
def erf(x: Any) -> Tensor: ...
@overload
def exp(x: ScalarHandle) -> ScalarHandle: ...
@overload
def exp(x: Any) -> Tensor: ...
@overload
def exp2(x: ScalarHandle) -> ScalarHandle: ...
@overload
def exp2(x: Any) -> Tensor: ...
@overload
def expm1(x: ScalarHandle) -> ScalarHandle: ...
@overload
def expm1(x: Any) -> Tensor: ...
@overload
def float_power(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def float_power(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def float_power(x1: Any, x2: Any) -> Tensor: ...
@overload
def floor(x: ScalarHandle) -> ScalarHandle: ...
@overload
def floor(x: Any) -> Tensor: ...
@overload
def floor_divide(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def floor_divide(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def floor_divide(x1: Any, x2: Any) -> Tensor: ...
@overload
def fmax(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def fmax(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def fmax(x1: Any, x2: Any) -> Tensor: ...
@overload
def fmin(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def fmin(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def fmin(x1: Any, x2: Any) -> Tensor: ...
@overload
def fmod(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def fmod(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def fmod(x1: Any, x2: Any) -> Tensor: ...
@overload
def frac(x: ScalarHandle) -> ScalarHandle: ...
@overload
def frac(x: Any) -> Tensor: ...
@overload
def gelu(x: ScalarHandle) -> ScalarHandle: ...
@overload
def gelu(x: Any) -> Tensor: ...
@overload
def gelu_tanh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def gelu_tanh(x: Any) -> Tensor: ...
@overload
def greater(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def greater(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def greater(x1: Any, x2: Any) -> Tensor: ...
@overload
def greater_equal(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def greater_equal(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def greater_equal(x1: Any, x2: Any) -> Tensor: ...
@overload
def heaviside(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def heaviside(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def heaviside(x1: Any, x2: Any) -> Tensor: ...
@overload
def hypot(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def hypot(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def hypot(x1: Any, x2: Any) -> Tensor: ...

inf: float

@overload
def isclose(
    x1: ScalarHandle,
    x2: Any,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: builtins.bool = False,
) -> ScalarHandle: ...
@overload
def isclose(
    x1: Any,
    x2: ScalarHandle,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: builtins.bool = False,
) -> ScalarHandle: ...
@overload
def isclose(
    x1: Any, x2: Any, *, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: builtins.bool = False
) -> Tensor: ...
@overload
def isfinite(x: ScalarHandle) -> ScalarHandle: ...
@overload
def isfinite(x: Any) -> Tensor: ...
@overload
def isinf(x: ScalarHandle) -> ScalarHandle: ...
@overload
def isinf(x: Any) -> Tensor: ...
@overload
def isnan(x: ScalarHandle) -> ScalarHandle: ...
@overload
def isnan(x: Any) -> Tensor: ...
@overload
def isneginf(x: ScalarHandle) -> ScalarHandle: ...
@overload
def isneginf(x: Any) -> Tensor: ...
@overload
def isposinf(x: ScalarHandle) -> ScalarHandle: ...
@overload
def isposinf(x: Any) -> Tensor: ...
@overload
def ldexp(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def ldexp(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def ldexp(x1: Any, x2: Any) -> Tensor: ...
@overload
def lerp(x1: ScalarHandle, x2: Any, weight: Any) -> ScalarHandle: ...
@overload
def lerp(x1: Any, x2: ScalarHandle, weight: Any) -> ScalarHandle: ...
@overload
def lerp(x1: Any, x2: Any, weight: Any) -> Tensor: ...
@overload
def less(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def less(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def less(x1: Any, x2: Any) -> Tensor: ...
@overload
def less_equal(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def less_equal(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def less_equal(x1: Any, x2: Any) -> Tensor: ...
@overload
def log(x: ScalarHandle) -> ScalarHandle: ...
@overload
def log(x: Any) -> Tensor: ...
@overload
def log1p(x: ScalarHandle) -> ScalarHandle: ...
@overload
def log1p(x: Any) -> Tensor: ...
@overload
def log2(x: ScalarHandle) -> ScalarHandle: ...
@overload
def log2(x: Any) -> Tensor: ...
@overload
def log10(x: ScalarHandle) -> ScalarHandle: ...
@overload
def log10(x: Any) -> Tensor: ...
@overload
def log_sigmoid(x: ScalarHandle) -> ScalarHandle: ...
@overload
def log_sigmoid(x: Any) -> Tensor: ...
@overload
def logaddexp(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def logaddexp(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def logaddexp(x1: Any, x2: Any) -> Tensor: ...
@overload
def logaddexp2(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def logaddexp2(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def logaddexp2(x1: Any, x2: Any) -> Tensor: ...
@overload
def logical_and(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def logical_and(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def logical_and(x1: Any, x2: Any) -> Tensor: ...
@overload
def logical_not(x: ScalarHandle) -> ScalarHandle: ...
@overload
def logical_not(x: Any) -> Tensor: ...
@overload
def logical_or(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def logical_or(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def logical_or(x1: Any, x2: Any) -> Tensor: ...
@overload
def logical_xor(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def logical_xor(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def logical_xor(x1: Any, x2: Any) -> Tensor: ...
@overload
def max(
    x: ScalarHandle, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def max(
    x: Any, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def maximum(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def maximum(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def maximum(x1: Any, x2: Any) -> Tensor: ...
@overload
def mean(
    x: ScalarHandle, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def mean(
    x: Any, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def min(
    x: ScalarHandle, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def min(
    x: Any, axis: Axes = None, *, over: Any = ..., keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def minimum(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def minimum(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def minimum(x1: Any, x2: Any) -> Tensor: ...
@overload
def multiply(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def multiply(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def multiply(x1: Any, x2: Any) -> Tensor: ...

nan: float

@overload
def nan_to_num(
    x: ScalarHandle, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> ScalarHandle: ...
@overload
def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor: ...
@overload
def negative(x: ScalarHandle) -> ScalarHandle: ...
@overload
def negative(x: Any) -> Tensor: ...

newaxis: None

@overload
def nextafter(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def nextafter(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def nextafter(x1: Any, x2: Any) -> Tensor: ...
@overload
def not_equal(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def not_equal(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def not_equal(x1: Any, x2: Any) -> Tensor: ...

pi: float

@overload
def positive(x: ScalarHandle) -> ScalarHandle: ...
@overload
def positive(x: Any) -> Tensor: ...
@overload
def pow(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def pow(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def pow(x1: Any, x2: Any) -> Tensor: ...
@overload
def prod(
    x: ScalarHandle,
    axis: Axes = None,
    *,
    over: Any = ...,
    dtype: Any = None,
    keepdims: builtins.bool = False,
) -> ScalarHandle: ...
@overload
def prod(
    x: Any,
    axis: Axes = None,
    *,
    over: Any = ...,
    dtype: Any = None,
    keepdims: builtins.bool = False,
) -> Tensor: ...
@overload
def rad2deg(x: ScalarHandle) -> ScalarHandle: ...
@overload
def rad2deg(x: Any) -> Tensor: ...
@overload
def reciprocal(x: ScalarHandle) -> ScalarHandle: ...
@overload
def reciprocal(x: Any) -> Tensor: ...
@overload
def relu(x: ScalarHandle) -> ScalarHandle: ...
@overload
def relu(x: Any) -> Tensor: ...
@overload
def remainder(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def remainder(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def remainder(x1: Any, x2: Any) -> Tensor: ...
@overload
def round(x: ScalarHandle) -> ScalarHandle: ...
@overload
def round(x: Any) -> Tensor: ...
@overload
def rsqrt(x: ScalarHandle) -> ScalarHandle: ...
@overload
def rsqrt(x: Any) -> Tensor: ...
@overload
def sigmoid(x: ScalarHandle) -> ScalarHandle: ...
@overload
def sigmoid(x: Any) -> Tensor: ...
@overload
def sign(x: ScalarHandle) -> ScalarHandle: ...
@overload
def sign(x: Any) -> Tensor: ...
@overload
def signbit(x: ScalarHandle) -> ScalarHandle: ...
@overload
def signbit(x: Any) -> Tensor: ...
@overload
def silu(x: ScalarHandle) -> ScalarHandle: ...
@overload
def silu(x: Any) -> Tensor: ...
@overload
def sin(x: ScalarHandle) -> ScalarHandle: ...
@overload
def sin(x: Any) -> Tensor: ...
@overload
def sinh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def sinh(x: Any) -> Tensor: ...
@overload
def softplus(x: ScalarHandle) -> ScalarHandle: ...
@overload
def softplus(x: Any) -> Tensor: ...
@overload
def sqrt(x: ScalarHandle) -> ScalarHandle: ...
@overload
def sqrt(x: Any) -> Tensor: ...
@overload
def square(x: ScalarHandle) -> ScalarHandle: ...
@overload
def square(x: Any) -> Tensor: ...
@overload
def std(
    x: ScalarHandle, axis: Axes = None, *, correction: float = 0.0, keepdims: builtins.bool = False
) -> ScalarHandle: ...
@overload
def std(
    x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: builtins.bool = False
) -> Tensor: ...
@overload
def subtract(x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def subtract(x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def subtract(x1: Any, x2: Any) -> Tensor: ...
@overload
def sum(
    x: ScalarHandle,
    axis: Axes = None,
    *,
    over: Any = ...,
    dtype: Any = None,
    keepdims: builtins.bool = False,
) -> ScalarHandle: ...
@overload
def sum(
    x: Any,
    axis: Axes = None,
    *,
    over: Any = ...,
    dtype: Any = None,
    keepdims: builtins.bool = False,
) -> Tensor: ...
@overload
def tan(x: ScalarHandle) -> ScalarHandle: ...
@overload
def tan(x: Any) -> Tensor: ...
@overload
def tanh(x: ScalarHandle) -> ScalarHandle: ...
@overload
def tanh(x: Any) -> Tensor: ...
@overload
def trace(
    x: ScalarHandle, *, offset: int = 0, axis1: int = -2, axis2: int = -1, dtype: Any = None
) -> ScalarHandle: ...
@overload
def trace(
    x: Any, *, offset: int = 0, axis1: int = -2, axis2: int = -1, dtype: Any = None
) -> Tensor: ...
@overload
def trunc(x: ScalarHandle) -> ScalarHandle: ...
@overload
def trunc(x: Any) -> Tensor: ...
@overload
def vecdot(x1: ScalarHandle, x2: Any, axis: int = -1) -> ScalarHandle: ...
@overload
def vecdot(x1: Any, x2: ScalarHandle, axis: int = -1) -> ScalarHandle: ...
@overload
def vecdot(x1: Any, x2: Any, axis: int = -1) -> Tensor: ...
@overload
def where(condition: Any, x1: ScalarHandle, x2: Any) -> ScalarHandle: ...
@overload
def where(condition: Any, x1: Any, x2: ScalarHandle) -> ScalarHandle: ...
@overload
def where(condition: Any, x1: Any, x2: Any) -> Tensor: ...
