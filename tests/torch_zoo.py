"""Whole PyTorch models with random weights: what `torch.compile(backend="pullback")` is shown on.

timm's and transformers' come from the installed packages, without downloads; the rest stand here.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Subject:
    """A model: how it is made, what it is given (sizes by `size`), and its loss."""

    package: str
    make: Callable[[int], nn.Module]
    inputs: Callable[[int, int], tuple[Any, ...]]  # batch, size
    small: int
    large: int
    loss: Callable[..., torch.Tensor]


def stub_torchvision() -> None:
    """Modules in the place of torchvision, which has no build for the processor alone here."""
    ours = "", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets", ".io"
    more = ".datasets.folder", ".models", ".models.feature_extraction", ".transforms.v2"
    _stub("torchvision", [*ours, *more, ".transforms.v2.functional"])


def _stub(package: str, names: list[str]) -> None:
    if package in sys.modules or _comes(package):
        return
    for name in names:
        module = _Stub(package + name)
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
        sys.modules[module.__name__] = module
        parent, _, own = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    setattr(sys.modules[package], "__version__", "0.0")  # noqa: B010  # of no use to mypy


def _comes(package: str) -> bool:
    """Whether a package is there and can be imported: torchvision may be of another PyTorch."""
    try:
        importlib.import_module(package)
    except (ImportError, RuntimeError):
        for name in [n for n in sys.modules if n.partition(".")[0] == package]:
            del sys.modules[name]
        return False
    return True


class _Stub(types.ModuleType):
    """Whatever is asked of it is a class of nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name, (), {})


class _Nothing(type):
    """A class whose members are their own names."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


# --- written here ---------------------------------------------------------------------------------


class UNet(nn.Module):
    """Two levels down, two up, with skips."""

    def __init__(self, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.first = self._block(channels, width)
        self.second = self._block(width, 2 * width)
        self.third = self._block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.back2 = self._block(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.back1 = self._block(2 * width, width)
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(channels: int, width: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        third = self.third(F.max_pool2d(second, 2))
        x = self.back2(torch.cat([self.up2(third), second], 1))
        x = self.back1(torch.cat([self.up1(x), first], 1))
        return self.last(x)


class Tagger(nn.Module):
    """Words to tags: an embedding, a bidirectional LSTM, a layer."""

    def __init__(self, words: int = 100, width: int = 32, tags: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class GCN(nn.Module):
    """Two rounds of messages along edges, each divided by the degrees of its two nodes."""

    def __init__(self, features: int = 16, width: int = 32, classes: int = 5) -> None:
        super().__init__()
        self.one = nn.Linear(features, width)
        self.two = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        ones = torch.ones(source.shape, dtype=x.dtype)
        degrees = torch.zeros(x.shape[0], dtype=x.dtype).scatter_add(0, target, ones) + 1
        scale = degrees.rsqrt()

        def spread(h: torch.Tensor) -> torch.Tensor:
            messages = h[source] * (scale[source] * scale[target])[:, None]
            return torch.zeros_like(h).index_add(0, target, messages) + h * (scale**2)[:, None]

        return spread(self.two(F.relu(spread(self.one(x)))))


class Denoiser(nn.Module):
    """A convolutional net told how noisy its picture is."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 2 * width))
        self.norms = nn.ModuleList([nn.GroupNorm(4, width) for _ in range(2)])
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(2)])
        self.leave = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-torch.arange(16, dtype=x.dtype) / 2)
        angles = t.to(x.dtype)[:, None] * rates
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(2, 1)
        h = self.enter(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            told = norm(h) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
            h = h + conv(F.silu(told))
        return self.leave(h)


class DiffusionStep(nn.Module):
    """Noise on a picture, and what the net takes for it: the mean square between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Denoiser()

    def forward(self, x: torch.Tensor, noise: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        kept = torch.cos(t.to(x.dtype) / 100)[:, None, None, None]
        noisy = kept * x + (1 - kept**2).sqrt() * noise
        return F.mse_loss(self.net(noisy, t), noise)


# --- subjects -------------------------------------------------------------------------------------


def _timm(name: str, small: int, large: int = 224, sized: bool = False) -> Subject:
    def make(size: int) -> nn.Module:
        stub_torchvision()
        import timm

        own = {"img_size": size} if sized else {}
        return timm.create_model(name, pretrained=False, num_classes=10, **own)

    return Subject("timm", make, _pictures, small, large, _classes)


def _hf(config: str, model: str, inputs: Any, loss: Any, small: int, large: int, **own: Any) -> Any:
    def make(size: int) -> nn.Module:
        stub_torchvision()
        import transformers

        given = {name: value(size) if callable(value) else value for name, value in own.items()}
        told = getattr(transformers, config)(**given)
        return getattr(transformers, model)(told)

    return Subject("transformers", make, inputs, small, large, loss)


def _pictures(batch: int, size: int) -> tuple[Any, ...]:
    return (torch.randn(batch, 3, size, size),)


def _words(batch: int, size: int) -> tuple[Any, ...]:
    return (torch.randint(1, 100, (batch, size)),)


def _graph(batch: int, size: int) -> tuple[Any, ...]:
    nodes = batch * size
    return torch.randn(nodes, 16), torch.randint(0, nodes, (2, 4 * nodes))


def _noisy(batch: int, size: int) -> tuple[Any, ...]:
    shape = batch, 3, size, size
    return torch.randn(shape), torch.randn(shape), torch.randint(0, 100, (batch,))


def _spoken(batch: int, size: int) -> tuple[Any, ...]:
    return torch.randn(batch, 80, size), torch.randint(1, 100, (batch, 12))


def _pairs(batch: int, size: int) -> tuple[Any, ...]:
    words = torch.randint(1, 100, (batch, size))
    return words, torch.ones_like(words), torch.randint(1, 100, (batch, size // 2))


def _first(result: Any) -> torch.Tensor:
    if isinstance(result, torch.Tensor):
        return result
    for name in ("logits", "last_hidden_state"):
        if getattr(result, name, None) is not None:
            return getattr(result, name)
    return result[0]


def _classes(result: Any, inputs: Any) -> torch.Tensor:
    """Cross entropy of every place's scores, towards classes counted up."""
    del inputs
    scores = _first(result)
    axis = 1 if scores.ndim == 4 else -1
    scores = scores.movedim(axis, -1).flatten(0, -2)
    return F.cross_entropy(scores, torch.arange(scores.shape[0]) % scores.shape[1])


def _itself(result: Any, inputs: Any) -> torch.Tensor:
    del inputs
    return result


WHISPER = {
    "vocab_size": 100, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 1, "max_source_positions": lambda n: n // 2,
}  # fmt: skip
LLAMA = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "use_cache": False,
}  # fmt: skip
GPT2 = {
    "vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
BERT = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": 128, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
VIT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "image_size": lambda n: n, "patch_size": 16,
}  # fmt: skip
T5 = {
    "vocab_size": 100, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
    "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0,
}  # fmt: skip
MAMBA = {
    "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8,
    "use_cache": False,
}  # fmt: skip


def _own(
    make: type[nn.Module], inputs: Any, small: int, large: int, loss: Any = _classes
) -> Subject:
    return Subject("", lambda size: make(), inputs, small, large, loss)


SUBJECTS: dict[str, Subject] = {
    "unet": _own(UNet, _pictures, 32, 64),
    "lstm_tagger": _own(Tagger, _words, 12, 32),
    "gcn": _own(GCN, _graph, 50, 500),
    "diffusion_step": _own(DiffusionStep, _noisy, 16, 32, _itself),
    "resnet18": _timm("resnet18", 64),
    "vit_tiny": _timm("vit_tiny_patch16_224", 64, sized=True),
    "convnext_atto": _timm("convnext_atto", 64),
    "mobilenetv3_small": _timm("mobilenetv3_small_100", 96),
    "efficientnet_b0": _timm("efficientnet_b0", 96),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224", 64, sized=True),
    "mixer_s": _timm("mixer_s16_224", 64, sized=True),
    "regnetx_002": _timm("regnetx_002", 64),
    "gpt2": _hf("GPT2Config", "GPT2LMHeadModel", _words, _classes, 16, 64, **GPT2),
    "llama": _hf("LlamaConfig", "LlamaForCausalLM", _words, _classes, 16, 64, **LLAMA),
    "bert": _hf("BertConfig", "BertForMaskedLM", _words, _classes, 16, 64, **BERT),
    "vit": _hf("ViTConfig", "ViTForImageClassification", _pictures, _classes, 64, 224, **VIT),
    "t5": _hf("T5Config", "T5ForConditionalGeneration", _pairs, _classes, 16, 64, **T5),
    "whisper_tiny": _hf(
        "WhisperConfig", "WhisperForConditionalGeneration", _spoken, _classes, 40, 200, **WHISPER
    ),
    "mamba": _hf("MambaConfig", "MambaForCausalLM", _words, _classes, 12, 32, **MAMBA),
}


def called(name: str, model: nn.Module, given: tuple[Any, ...]) -> Any:
    """A model's result: encoders with a decoder take its words by name."""
    if name == "whisper_tiny":
        return model(given[0], decoder_input_ids=given[1], use_cache=False)
    if name == "t5":
        return model(input_ids=given[0], attention_mask=given[1], decoder_input_ids=given[2])
    return model(*given)


def still(model: Any) -> None:
    """No layer draws random numbers: eager's and ours would differ."""
    for layer in model.modules():
        if "Drop" in type(layer).__name__:
            for name in ("p", "drop_prob"):
                if hasattr(layer, name):
                    setattr(layer, name, 0.0)
        if isinstance(getattr(layer, "dropout", None), float):
            layer.dropout = 0.0
