"""Words that a model gives one after the other, and packed sequences, beside eager."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402  # it needs it

from pullback.bridge.graphs import _wanted  # noqa: E402
from pullback.errors import ShapeError  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
if importlib.util.find_spec("transformers") is None:
    transformers: Any = None
else:
    from torch_zoo import stub_torchvision

    stub_torchvision()
    import transformers

WORDS, PLACES = 97, 64


def made(name: str) -> Any:
    if name == "gpt2":
        sizes = {"n_positions": PLACES, "n_embd": 32, "n_layer": 2, "n_head": 4}
        config = transformers.GPT2Config(
            vocab_size=WORDS, bos_token_id=0, eos_token_id=None, **sizes
        )
        return transformers.GPT2LMHeadModel(config).eval()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=WORDS, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=PLACES, **sizes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.skipif(transformers is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("cache", ["static", None])
def test_a_model_gives_the_words_that_eager_gives(name: str, cache: str | None) -> None:
    """With a cache of one size, and with one that grows; nothing runs in between."""
    model = made(name)
    words = torch.randint(WORDS, (2, 5))
    told = {
        "max_new_tokens": 6, "do_sample": False, "cache_implementation": cache, "pad_token_id": 0,
        "eos_token_id": None, "output_logits": True, "return_dict_in_generate": True,
    }  # fmt: skip
    eager = model.generate(words, **told)
    model.forward = torch.compile(model.forward, backend=pb.torch.backend)
    own = model.generate(words, **told)
    assert torch.equal(own.sequences, eager.sequences)
    for step, (mine, theirs) in enumerate(zip(own.logits, eager.logits, strict=True)):
        torch.testing.assert_close(
            mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=step: f"word {n}: {m}"
        )
    report = pb.torch.report()
    assert report.graphs and not report.fallbacks
    assert not [g.sizes for g in report.graphs if g.sizes]
    # The prompt, the first word after it, and, with a cache that grows, all others as one.
    assert len(report.graphs) == (3 if cache is None else 2)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_packed_sequences_are_eagers_between_graphs(name: str) -> None:
    """PyTorch breaks its graph where it packs: what stands on both sides is compiled."""
    layer = getattr(torch.nn, name)(8, 6, batch_first=True, bidirectional=True).double()
    head = torch.nn.Linear(12, 3).double()
    weights = [*layer.parameters(), *head.parameters()]

    def run(x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(
            torch.relu(x) * 2, lengths, batch_first=True, enforce_sorted=False
        )
        y, last = layer(packed)
        last = last[0] if name == "LSTM" else last
        return head(pad_packed_sequence(y, batch_first=True)[0]), last

    fast = torch.compile(run, backend=pb.torch.backend)
    for lengths in ([5, 2, 3], [4, 4, 1]):
        x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
        results = []
        for function in (fast, run):
            y, last = function(x, torch.tensor(lengths))
            loss = y.square().sum() + last.sum()
            results.append([y.detach(), last.detach(), *torch.autograd.grad(loss, [x, *weights])])
        for n, (own, eager) in enumerate(zip(*results, strict=True)):
            torch.testing.assert_close(own, eager, msg=lambda m, n=n: f"{n}: {m}")
    assert pb.torch.report().graphs


def test_what_python_says_of_a_size_has_a_code() -> None:
    raw = TypeError("unsupported operand type(s) for +: 'Dim' and 'int'")
    assert _wanted(raw) == f"a rule wants a size as a number ({raw}) [E120]"
    assert _wanted(ValueError()).endswith("(ValueError) [E120]")
    own = ShapeError("cannot join on its symbolic axis", code="E120")
    assert _wanted(own) == str(own).splitlines()[0]
