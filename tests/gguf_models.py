"""Small random models of transformers, written as GGUF files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb

Array = np.ndarray[Any, Any]
WORDS = 300
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def packages() -> tuple[Any, Any, Any]:
    """`gguf`, `torch` and `transformers`."""
    pytest.importorskip("torch", reason="torch is not installed")
    importlib.import_module("torch_zoo").stub_torchvision()
    return tuple(
        pytest.importorskip(name, reason=f"{name} is not installed")
        for name in ("gguf", "torch", "transformers")
    )


def llama(seed: int = 0, **changed: Any) -> Any:
    """A Llama of random weights, whose words differ in how likely they are."""
    _, torch, transformers = packages()
    settings: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(settings | changed)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 2.0 / parameter.shape[1] ** 0.5)
            else:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


def paired(weight: Array, heads: int) -> Array:
    """Rows of queries or keys as GGUF has them: halves of a head become pairs."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def tensors_of(model: Any) -> dict[str, Array]:
    """The weights of a Llama under the names of GGUF."""
    config = model.config
    given = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    made = {
        "token_embd.weight": given["model.embed_tokens.weight"],
        "output_norm.weight": given["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        made["output.weight"] = given["lm_head.weight"]
    for n in range(config.num_hidden_layers):
        for theirs, own in (NORMS | MATRICES).items():
            made[f"blk.{n}.{own}.weight"] = given[f"model.layers.{n}.{theirs}.weight"]
        for own, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            name = f"blk.{n}.attn_{own}.weight"
            made[name] = paired(made[name], heads)
    return made


def write(model: Any, path: Path, kind: str = "F32") -> None:
    """The model as a GGUF file, written by the package; its matrices of element type `kind`."""
    theirs, _, _ = packages()
    config, writer = model.config, theirs.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, value in tensors_of(model).items():
        of = theirs.GGMLQuantizationType[kind if value.ndim > 1 else "F32"]
        data = theirs.quants.quantize(value, of)
        writer.add_tensor(name, data, raw_dtype=of)
    for part in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{part}")()
    writer.close()


def gpt2(seed: int = 0, **changed: Any) -> Any:
    """A GPT-2 of random weights."""
    _, torch, transformers = packages()
    settings: dict[str, Any] = {
        "vocab_size": WORDS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**(settings | changed)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 1.0 if ".wte" in name or ".wpe" in name else 0.25)
            else:
                parameter.uniform_(*((-0.3, 0.3) if name.endswith("bias") else (0.5, 1.5)))
    return model.eval()


def gpt2_file(model: Any, path: Path) -> None:
    """The model as a GGUF file, by our own writer."""
    config, given = model.config, {n: v.detach().numpy() for n, v in model.state_dict().items()}
    names = {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    }  # fmt: skip
    made = {
        "token_embd.weight": given["transformer.wte.weight"],
        "position_embd.weight": given["transformer.wpe.weight"],
        "output.weight": given["lm_head.weight"],
    }
    for part in ("weight", "bias"):
        made[f"output_norm.{part}"] = given[f"transformer.ln_f.{part}"]
        for n in range(config.n_layer):
            for theirs, own in names.items():
                value = given[f"transformer.h.{n}.{theirs}.{part}"]
                made[f"blk.{n}.{own}.{part}"] = np.ascontiguousarray(value.T)
    facts = {
        "general.architecture": "gpt2", "gpt2.block_count": config.n_layer,
        "gpt2.context_length": config.n_positions, "gpt2.embedding_length": config.n_embd,
        "gpt2.feed_forward_length": 4 * config.n_embd, "gpt2.attention.head_count": config.n_head,
        "gpt2.attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }  # fmt: skip
    pb.gguf.write(path, facts, made)


def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[Array]]:
    """The tokens that transformers goes on with, and the scores that each was chosen by."""
    _, torch, _ = packages()
    tokens, scores = list(prompt), []
    past, given = None, list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            made = model(torch.tensor([given]), past_key_values=past, use_cache=True)
            past = made.past_key_values
            scores.append(made.logits[0, -1].numpy())
            given = [int(scores[-1].argmax())]
            tokens += given
    return tokens[len(prompt) :], scores


def replaced(model: Any, file: pb.gguf.File) -> None:
    """The model with the weights of a file, halves of a head where those have pairs."""
    _, torch, _ = packages()
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = model.state_dict()
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for n in range(config.num_hidden_layers):
        for theirs, own in (NORMS | MATRICES).items():
            names[f"model.layers.{n}.{theirs}"] = f"blk.{n}.{own}"
    for theirs, own in names.items():
        if f"{own}.weight" not in file.tensors:
            continue
        value = pb.gguf.dequantised(file[f"{own}.weight"]).numpy()
        if (count := heads.get(own.rpartition(".")[2])) is not None:
            pairs = value.reshape(count, value.shape[0] // count // 2, 2, -1)
            value = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(value.shape)
        state[f"{theirs}.weight"].copy_(torch.from_numpy(value.copy()))
    if config.tie_word_embeddings:
        state["lm_head.weight"].copy_(state["model.embed_tokens.weight"])
