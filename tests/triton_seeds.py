"""Functions of two projects in Triton, written anew: what each of them says that it derives.

All are of a block of 16 rows of 16 and of a row or column of 16, so that both are broadcast.
"""

from __future__ import annotations

import triton
import triton.language as tl

# --- srush/triton-autodiff: the function of its README, and each of its rules ---------------------


@triton.jit
def readme(x, y):
    a = tl.exp(x)
    b = tl.log(y[:, None])
    c = a + b
    return a * b + tl.dot(c, c, input_precision="ieee")


@triton.jit
def rule(x, y, NAME: tl.constexpr):
    """`x` a column, `y` a row."""
    if NAME == "log":
        z = tl.log(x) * y
    elif NAME == "exp":
        z = tl.exp(x) * y
    elif NAME == "log_exp":
        z = tl.log(x) * tl.exp(y)
    elif NAME == "sin":
        z = tl.sin(x) * y
    elif NAME == "cos":
        z = tl.cos(y) * x
    elif NAME == "sqrt":
        z = tl.sqrt(x) + tl.sqrt(y)
    elif NAME == "dot":
        z = tl.dot(x + y, x * y, input_precision="ieee")
    elif NAME == "expand_dims":
        z = x * tl.expand_dims(tl.sum(x * y, 0), 0)
    elif NAME == "mul":
        z = x * y
    elif NAME == "add":
        z = x + y
    elif NAME == "sub":
        z = (x - y) * (y - x)
    elif NAME == "div":
        z = x / y + y / x
    elif NAME == "power":  # Triton has no sign for it, and no unary plus
        z = x * x * x - tl.exp2(y * tl.log2(x))
    else:
        z = x * (-y) + (-x)
    return z


@triton.jit
def rule_kernel(X, Y, OUT, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    z = rule(tl.load(X + at)[:, None], tl.load(Y + at)[None, :], NAME)
    tl.store(OUT + at[:, None] * BLOCK + at[None, :], z)


# --- attorch.math: ten functions of blocks --------------------------------------------------------


@triton.jit
def accum_linear(accum, a, b):
    return accum + tl.dot(a, b, input_precision="ieee")


@triton.jit
def glu(a, b):
    return a * (b * tl.sigmoid(b))


@triton.jit
def softmax(x, NEG: tl.constexpr, LOG: tl.constexpr):
    x = -x if NEG else x
    x = x - tl.max(x, 1)[:, None]
    e = tl.exp(x)
    total = tl.sum(e, 1)[:, None]
    return x - tl.log(total) if LOG else e / total


@triton.jit
def calc_mean_and_inv_std(x, count, eps, mask):
    mean = tl.sum(x, 1) / count
    apart = tl.where(mask[None, :], x - mean[:, None], 0.0)
    return mean, tl.rsqrt(tl.sum(apart * apart, 1) / count + eps)


@triton.jit
def update_welford(x, prev_count, prev_mean, prev_var, count):
    total = prev_count + count
    mean = tl.sum(x, 1) / count
    apart = mean - prev_mean
    square = tl.sum((x - mean[:, None]) * (x - mean[:, None]), 1)
    var = prev_var * prev_count + square + apart * apart * prev_count * count / total
    return total, prev_mean + apart * count / total, var / total


@triton.jit
def update_ema(prev, new, momentum):
    return (1 - momentum) * prev + momentum * new


@triton.jit
def standardize(x, mean, inv_std, w, b):
    return w * inv_std * (x - mean) + b


@triton.jit
def calc_p_loss(x, t, param, size, KIND: tl.constexpr):
    """Smooth L1, L1, squares, Huber: `|x - t|` is compared, where attorch compares `x - t`."""
    d = x - t
    far = tl.abs(d)
    if KIND == 0:
        loss = tl.where(far < param, 0.5 * d * d / param, far - 0.5 * param)
    elif KIND == 1:
        loss = far
    elif KIND == 2:
        loss = d * d
    else:
        loss = tl.where(far < param, 0.5 * d * d, param * (far - 0.5 * param))
    return loss / size


@triton.jit
def nll_loss(x, size):
    return -x / size


@triton.jit
def cross_entropy_loss(x, pred):
    top = tl.max(x, 1)
    return top - pred + tl.log(tl.sum(tl.exp(x - top[:, None]), 1))


@triton.jit
def mathematics(x, y, at, NAME: tl.constexpr):
    """Each among other mathematics; `x` a block, `y` a row."""
    row, column = y[None, :], tl.sum(x * x, 1)
    if NAME == "accum_linear":
        z = accum_linear(x * row, x, tl.trans(x)) * tl.sin(x)
    elif NAME == "glu":
        z = glu(tl.sin(x), x * row)
    elif NAME == "softmax":
        z = softmax(x, False, False) * row + softmax(x, True, False) * x + softmax(x, False, True)
    elif NAME == "calc_mean_and_inv_std":
        mean, inv_std = calc_mean_and_inv_std(tl.where(at[None, :] < 13, x, 0.0), 13, 1e-5, at < 13)
        z = mean[:, None] * row + inv_std[:, None] * x
    elif NAME == "update_welford":
        total, mean, var = update_welford(x, 5, y, y * y, 16)
        z = (mean * total)[:, None] * x + tl.sqrt(var)[:, None]
    elif NAME == "update_ema":
        z = update_ema(x, tl.exp(row), 0.1) * x
    elif NAME == "standardize":
        z = tl.sin(
            standardize(x, (column / 16)[:, None], tl.rsqrt(column)[:, None], row, row * row)
        )
    elif NAME == "calc_p_loss":
        z = calc_p_loss(x, row, 0.7, 16, 0) + calc_p_loss(x, row, 0.7, 16, 1) * x
        z += calc_p_loss(x, row, 0.7, 16, 2) + calc_p_loss(x, row, 0.7, 16, 3)
    elif NAME == "nll_loss":
        z = nll_loss(x * row, 16) * x
    else:
        z = cross_entropy_loss(x, y)[:, None] * row
    return z


@triton.jit
def mathematics_kernel(X, Y, OUT, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place = at[:, None] * BLOCK + at[None, :]
    z = mathematics(tl.load(X + place), tl.load(Y + at), at, NAME)
    tl.store(OUT + place, z)
