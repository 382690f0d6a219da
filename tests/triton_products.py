"""Kernels that multiply matrices, for tests: as Triton's tutorials have them, and in other ways."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def tutorial_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision="ieee")
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(c_ptr.dtype.element_ty)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, c, mask=c_mask)


@triton.jit
def batched_kernel(
    A, B, BIAS, C, M, N, K, sab, sam, sak, sbb, sbk, sbn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    A += batch * sab
    B += batch * sbb
    for first in range(0, K, BK):
        inner = first + tl.arange(0, BK)
        x_mask = (rows[:, None] < M) & (inner[None, :] < K)
        y_mask = (inner[:, None] < K) & (cols[None, :] < N)
        x = tl.load(A + rows[:, None] * sam + inner[None, :] * sak, mask=x_mask, other=0.0)
        y = tl.load(B + inner[:, None] * sbk + cols[None, :] * sbn, mask=y_mask, other=0.0)
        total += tl.dot(x, y, input_precision="ieee")
    total += tl.load(BIAS + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    if GELU:
        total = 0.5 * total * (1 + tl.math.erf(total * 0.70710678118))
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    at = C + batch * M * N + rows[:, None] * N + cols[None, :]
    tl.store(at, total.to(C.dtype.element_ty), mask=mask)


@triton.jit
def gated_kernel(X, W, V, OUT, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    value = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        inner = first + tl.arange(0, BK)
        x_mask = (rows[:, None] < M) & (inner[None, :] < K)
        w_mask = (cols[:, None] < N) & (inner[None, :] < K)
        x = tl.load(X + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
        w = tl.load(W + cols[:, None] * K + inner[None, :], mask=w_mask, other=0.0)
        v = tl.load(V + cols[:, None] * K + inner[None, :], mask=w_mask, other=0.0)
        gate = tl.dot(x, tl.trans(w), gate, input_precision="ieee")
        value = tl.dot(x, tl.trans(v), value, input_precision="ieee")
    out = gate / (1 + tl.exp(-gate)) * value
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(OUT + rows[:, None] * N + cols[None, :], out.to(OUT.dtype.element_ty), mask=mask)


@triton.jit
def square_kernel(X, OUT, M, K, BM: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BM + tl.arange(0, BM)
    inner = tl.arange(0, BK)
    x_mask = (rows[:, None] < M) & (inner[None, :] < K)
    y_mask = (cols[:, None] < M) & (inner[None, :] < K)
    x = tl.load(X + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
    y = tl.load(X + cols[:, None] * K + inner[None, :], mask=y_mask, other=0.0)
    out = tl.dot(x, tl.trans(y), input_precision="ieee")
    mask = (rows[:, None] < M) & (cols[None, :] < M)
    tl.store(OUT + rows[:, None] * M + cols[None, :], out, mask=mask)


@triton.jit
def begun_kernel(
    A, B, R, C, M, N, K, SQUARE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    total = tl.load(R + rows[:, None] * N + cols[None, :], mask=mask, other=0.0)
    for first in range(0, K, BK):
        inner = first + tl.arange(0, BK)
        x_mask = (rows[:, None] < M) & (inner[None, :] < K)
        y_mask = (inner[:, None] < K) & (cols[None, :] < N)
        x = tl.load(A + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
        y = tl.load(B + inner[:, None] * N + cols[None, :], mask=y_mask, other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
    if SQUARE:
        total = total * total
    tl.store(C + rows[:, None] * N + cols[None, :], total, mask=mask)


@triton.jit
def split_kernel(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.program_id(2) * BK + tl.arange(0, BK)
    x_mask = (rows[:, None] < M) & (inner[None, :] < K)
    y_mask = (inner[:, None] < K) & (cols[None, :] < N)
    x = tl.load(A + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
    y = tl.load(B + inner[:, None] * N + cols[None, :], mask=y_mask, other=0.0)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    made = tl.dot(x, y, input_precision="ieee")
    tl.atomic_add(C + rows[:, None] * N + cols[None, :], made, mask=mask)


@triton.jit
def summed_kernel(
    A, B, C, D, M, N, K, HOW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    kept = tl.zeros((BM,), tl.float32)
    for first in range(0, K, BK):
        inner = first + tl.arange(0, BK)
        last = M - 4 if HOW == "fewer" else M
        x_mask = (rows[:, None] < last) & (inner[None, :] < K)
        y_mask = (inner[:, None] < K) & (cols[None, :] < N)
        x = tl.load(A + rows[:, None] * K + inner[None, :], mask=x_mask, other=0.0)
        y = tl.load(B + inner[:, None] * N + cols[None, :], mask=y_mask, other=0.0)
        if HOW == "square":
            kept += tl.sum(x * x, 1)
        if HOW == "operand":
            x = x * x
        if HOW == "halved":
            total = tl.dot(x, y, total * 0.5, input_precision="ieee")
        else:
            total = tl.dot(x, y, total, input_precision="ieee")
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    if HOW == "square":
        total += kept[:, None]
    if HOW == "row":
        total = total - tl.max(total, 1)[:, None]
    if HOW == "branch":
        if tl.program_id(0) == 0:
            tl.store(D + rows[:, None] * N + cols[None, :], total, mask=mask)
    elif HOW == "two":
        tl.store(D + rows[:, None] * N + cols[None, :], total * 2, mask=rows[:, None] < M)
    tl.store(C + rows[:, None] * N + cols[None, :], total, mask=mask)
