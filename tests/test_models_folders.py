"""Folders of Hugging Face's layout beside transformers; what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_models
import pullback as pb
from gguf_support import damaged
from pullback import models, nn, optim
from pullback.errors import PullbackError

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore")]  # of transformers
TOKENS = np.random.default_rng(0).integers(0, 300, (2, 9))


def bert(**changed: Any) -> Any:
    _, torch, transformers = gguf_models.packages()
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=20, **changed,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.BertModel(config).eval()


def theirs(model: Any, *tokens: Any, **more: Any) -> Any:
    _, torch, _ = gguf_models.packages()
    with torch.inference_mode():
        return model(*(torch.from_numpy(t) for t in tokens), **more)


def same(got: pb.Tensor, want: Any, bound: float = 1e-4) -> None:
    off = np.abs(got.numpy() - want.numpy())
    assert off.max() < bound, (np.unravel_index(off.argmax(), off.shape), off.max())


@pytest.mark.slow
@pytest.mark.parametrize("shards", ["1GB", "60KB"])
def test_a_gpt2_of_a_folder(shards: str, tmp_path: Path) -> None:
    model = gguf_models.gpt2(tie_word_embeddings=True)
    model.save_pretrained(tmp_path, max_shard_size=shards)
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 if shards == "1GB" else 10)
    same(pb.jit(models.load_gpt2(tmp_path))(TOKENS), theirs(model, TOKENS).logits)


SCALED = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip


TIED = {"tie_word_embeddings": True, "rope_parameters": SCALED}


@pytest.mark.parametrize("changed", [{}, pytest.param(TIED, marks=pytest.mark.slow)])
def test_a_llama_of_a_folder(changed: dict[str, Any], tmp_path: Path) -> None:
    model = gguf_models.llama(**changed)
    model.save_pretrained(tmp_path)
    same(pb.jit(models.load_llama(tmp_path))(TOKENS), theirs(model, TOKENS).logits)


def test_a_bert_of_a_folder(tmp_path: Path) -> None:
    """Texts that are filled up, and of two parts; one program for all lengths."""
    _, torch, _ = gguf_models.packages()
    model = bert()
    model.save_pretrained(tmp_path)
    own = models.load_bert(tmp_path)
    real = np.arange(9) < np.array([[9], [6]])
    kinds = (np.arange(9) > 3).astype(np.int64) * np.ones((2, 1), np.int64)
    given = {"attention_mask": torch.from_numpy(real), "token_type_ids": torch.from_numpy(kinds)}
    want = theirs(model, TOKENS, **given)
    shape = pb.dim("texts", 1, 4), pb.dim("tokens", 1, 20)
    run = pb.jit(own, shapes=[shape] * 3)
    for length in (9, 6):  # the second text has six
        x, pooled = run(TOKENS[1:, :length], real[1:, :length], kinds[1:, :length])
        same(x[:, :6], want.last_hidden_state[1:, :6])
        same(pooled, want.pooler_output[1:])
    assert run.traces == 1


@pytest.mark.slow
def test_what_was_loaded_trains(tmp_path: Path) -> None:
    gguf_models.llama(num_hidden_layers=1).save_pretrained(tmp_path)
    model = models.load_llama(tmp_path).train()
    opt = optim.AdamW(model.parameters(), lr=1e-2)

    @pb.jit
    def step(tokens: pb.Tensor) -> pb.Tensor:
        opt.zero_grad()
        scores = model(tokens)[:, :-1]
        loss = nn.functional.cross_entropy(scores.reshape(-1, 300), tokens[:, 1:].reshape(-1))
        loss.backward()
        opt.step()
        return loss

    losses = [float(step(TOKENS).item()) for _ in range(5)]
    assert losses[-1] < 0.7 * losses[0], losses


# --- without another package

CONFIGS: dict[str, tuple[Callable[[Path], nn.Module], dict[str, Any]]] = {
    "gpt2": (models.load_gpt2, {"n_embd": 4, "n_head": 2, "vocab_size": 6, "n_positions": 5,
                                "n_layer": 1}),
    "llama": (models.load_llama, {"hidden_size": 4, "num_attention_heads": 2, "vocab_size": 6,
                                  "intermediate_size": 3, "num_hidden_layers": 1}),
    "bert": (models.load_bert, {"hidden_size": 4, "num_attention_heads": 2, "vocab_size": 6,
                                "intermediate_size": 3, "num_hidden_layers": 1,
                                "max_position_embeddings": 5}),
}  # fmt: skip


def folder(path: Path, **changed: Any) -> Path:
    """A configuration of a small Llama, and its weights; what is None is left out."""
    config = {"model_type": "llama", **CONFIGS["llama"][1]}
    shapes = {"model.embed_tokens": (6, 4), "lm_head": (6, 4), "model.norm": (4,)}
    layer = "model.layers.0"
    shapes |= {f"{layer}.{n}": (4,) for n in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{layer}.self_attn.{n}_proj": (4, 4) for n in "qkvo"}
    shapes |= {f"{layer}.mlp.{n}_proj": (3, 4) for n in ("gate", "up")}
    shapes |= {f"{layer}.mlp.down_proj": (4, 3)}
    tensors: dict[str, Any] = {f"{n}.weight": np.ones(s, np.float16) for n, s in shapes.items()}
    for name, value in changed.items():
        home = tensors if "." in name else config
        home.pop(name, None)
        if value is not None:
            home[name] = value
    (path / "config.json").write_text(json.dumps(config))
    nn.save(tensors, path / "model.safetensors")
    return path


def test_weights_of_16_bits_become_float32(tmp_path: Path) -> None:
    model = models.load_llama(folder(tmp_path))
    assert {p.dtype for p in model.parameters()} == {pb.float32}
    assert model(np.zeros((1, 2), np.int64)).shape == (1, 2, 6)


ONES = np.ones((4, 4), np.float32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "mamba"}, "'mamba'"),
    ({"hidden_size": None}, "`hidden_size` is None"),
    ({"hidden_size": 8}, "(6, 8) is wanted"),
    ({"hidden_size": 1 << 40}, "counts nothing"),
    ({"num_hidden_layers": 2}, "2 layers of 9 tensors"),
    ({"num_hidden_layers": 10**9}, "1000000000 layers"),
    ({"num_attention_heads": 3, "num_key_value_heads": 2}, "3 heads"),
    ({"hidden_act": "mish"}, "'mish'"),
    ({"attention_bias": True}, "`attention_bias`"),
    ({"rms_norm_eps": "small"}, "'small'"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'"),
    ({"rope_parameters": {"rope_type": "llama3"}}, "(None, None, None, None)"),
    ({"rope_theta": 0}, "`rope_theta` is 0"),
    ({"lm_head.weight": None}, "`lm_head.weight`"),
    ({"model.extra.weight": ONES}, "`extra.weight`"),
    ({"model.layers.0.mlp.up_proj.weight": ONES}, "(3, 4) is wanted"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG, ids=[w[1] for w in WRONG])
def test_folders_that_are_refused(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(PullbackError) as raised:
        models.load_llama(folder(tmp_path, **changed))
    assert raised.value.code == "E586" and said in str(raised.value), str(raised.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_made_before_the_tensors_are_there(name: str, tmp_path: Path) -> None:
    """A small file that says a large model."""
    load, config = CONFIGS[name]
    large = {k: 1 << 30 for k in config if k not in ("n_head", "n_layer")}
    ones = {k: 1 for k in config if k.endswith(("heads", "layers"))}
    nn.save({"w": pb.ones(2)}, tmp_path / "model.safetensors")
    facts = {"model_type": name, **config, **large, **ones}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(PullbackError) as raised:
        load(tmp_path)
    assert raised.value.code == "E586"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "config.json cannot be read"),
        ({"config.json": "{"}, "no JSON"),
        ({"config.json": "[" * 100_000}, "no JSON"),
        ({"config.json": "[]"}, "no keys"),
        (
            {"model.safetensors.index.json": '{"weight_map": {"a": "../x.safetensors"}}'},
            "../x.safetensors', no",
        ),
        ({"model.safetensors.index.json": '{"weight_map": {"a": "x.bin"}}'}, "x.bin"),
        ({"model.safetensors.index.json": '{"weight_map": [1]}'}, "no `weight_map`"),
        ({"model.safetensors.index.json": '{"weight_map": {"a": "x.safetensors"}}'}, "not there"),
        ({"model.safetensors.none": ""}, "pickled weights are not read"),
    ],
)
def test_texts_that_are_refused(files: dict[str, str], said: str, tmp_path: Path) -> None:
    if any("safetensors" in name for name in files):
        folder(tmp_path)
        (tmp_path / "model.safetensors").unlink()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(PullbackError) as raised:
        models.load_llama(tmp_path)
    assert raised.value.code == "E586" and said in raised.value.what, raised.value.what


def test_damaged_configurations_are_read_or_refused(tmp_path: Path) -> None:
    """Bytes, and values, changed at random."""
    folder(tmp_path, rope_parameters={"rope_type": "llama3"}, tie_word_embeddings=False)
    path = tmp_path / "config.json"
    data, seen = path.read_bytes(), set()
    values = (0, -1, 1.5, 10**30, "x", None, [], {}, True, float("nan"), {"rope_type": []})
    for number in range(120):
        source = random.Random(number)
        config = json.loads(data)
        config[source.choice(list(config))] = source.choice(values)
        path.write_bytes(damaged(number, data) if number % 2 else json.dumps(config).encode())
        try:
            models.load_llama(tmp_path)
        except PullbackError as error:
            seen.add(error.code)
        else:
            seen.add("read")
    assert seen == {"read", "E586"}, seen
