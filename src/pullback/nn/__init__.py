"""Layers, losses and modules under PyTorch's names."""

from pullback.nn import functional, init, utils
from pullback.nn.container import ModuleDict, ModuleList, Sequential
from pullback.nn.criteria import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
)
from pullback.nn.functional import functional_call
from pullback.nn.gpt import GPT, Block, CausalAttention, GPTConfig
from pullback.nn.layers import (
    GELU,
    Dropout,
    Embedding,
    Identity,
    LayerNorm,
    Linear,
    LogSoftmax,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from pullback.nn.module import Module
from pullback.nn.multihead import MultiheadAttention
from pullback.nn.parameter import Buffer, Parameter
from pullback.nn.transformer import TransformerEncoder, TransformerEncoderLayer
from pullback.nn.weights import load, save

__all__ = [
    "GELU",
    "GPT",
    "BCEWithLogitsLoss",
    "Block",
    "Buffer",
    "CausalAttention",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "GPTConfig",
    "Identity",
    "L1Loss",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "functional",
    "functional_call",
    "init",
    "load",
    "save",
    "utils",
]
