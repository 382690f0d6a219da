"""Language models of GGUF files beside transformers: token for token, texts, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import gguf_models
import pullback as pb
from gguf_support import random_blocks, small
from pullback.cli import main
from pullback.errors import ArgumentError, PullbackError, StateError, UnsupportedError
from pullback.gguf.generate import chosen
from pullback.gguf.kinds import named

pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore")]  # of transformers
TIE = 1e-5
PROMPT = [1, 5, 9, 200, 33, 17, 250, 3, 3, 90, 41, 77, 8, 260, 11, 2, 150, 60, 61, 62, 5]
COUNT = 50


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def exact(decoder: pb.gguf.Decoder, model: Any, prompt: list[int] = PROMPT) -> None:
    """Each of 50 greedy tokens is transformers', or within 1e-5 of as likely there."""
    want, scores = gguf_models.greedy(model, prompt, COUNT)
    got, given = [], prompt
    for n in range(COUNT):
        own = decoder.next(given)
        off = np.abs(own - scores[n])
        assert off.max() < 2e-4, f"token {n}: score {off.argmax()} off by {off.max()}"
        got.append(int(own.argmax()))
        if got[n] != want[n]:
            gap = scores[n][want[n]] - scores[n][got[n]]
            assert gap < TIE, f"token {n}: got {got[n]}, want {want[n]}, {gap} likelier"
        given = [want[n]]
    assert len(set(want)) > 10, want  # not a short circle
    assert decoder._one.traces == decoder._several.traces == 1


def test_a_llama_goes_on_as_in_transformers(path: Path) -> None:
    """The package's file; the prompt in two chunks, of which the second is filled up."""
    model = gguf_models.llama()
    gguf_models.write(model, path)
    exact(pb.gguf.model(path), model)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("tied", [False, True])
def test_llamas_of_blocks(kind: str, tied: bool, path: Path) -> None:
    """Beside transformers with the weights that the blocks say."""
    model = gguf_models.llama(1, tie_word_embeddings=tied)
    gguf_models.write(model, path, kind)
    gguf_models.replaced(model, pb.gguf.read(path))
    exact(pb.gguf.model(path), model)


@pytest.mark.slow
def test_a_llama_of_large_blocks(path: Path) -> None:
    """q4_K and q6_K of random bytes, which no package writes."""
    model = gguf_models.llama(
        2, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=8,
    )  # fmt: skip
    gguf_models.write(model, path)
    plain, tensors = pb.gguf.read(path), {}
    for n, (name, stored) in enumerate(plain.tensors.items()):
        kind = named(("q4_K", "q6_K")[n % 2])
        tensors[name] = pb.gguf.dequantised(stored).numpy()
        if len(stored.shape) == 2:
            blocks = random_blocks(kind.name, stored.shape[0], stored.shape[1] // 256, n, 2e-4)
            tensors[name] = (blocks, kind.name)
    facts = dict(plain.facts)
    pb.gguf.write(path.with_name("blocks.gguf"), facts, tensors)
    file = pb.gguf.read(path.with_name("blocks.gguf"))
    gguf_models.replaced(model, file)
    exact(pb.gguf.model(file), model)


@pytest.mark.slow
def test_a_gpt2_goes_on_as_in_transformers(path: Path) -> None:
    model = gguf_models.gpt2()
    gguf_models.gpt2_file(model, path)
    exact(pb.gguf.model(path), model)


# --- without another package


def test_chunks_and_single_tokens_agree(path: Path) -> None:
    """The last place too, behind which a chunk is filled up; `reset` forgets everything."""
    decoder = pb.gguf.model(small(path))
    tokens = np.random.default_rng(1).integers(0, 20, 40)
    single = [decoder.next(token) for token in tokens][-1]
    with pytest.raises(ArgumentError, match="in 40 places") as raised:
        decoder.next(1)
    assert raised.value.code == "E585"
    for cut in (1, 3, 16, 38):
        decoder.reset()
        decoder.next(tokens[:cut])
        np.testing.assert_allclose(decoder.next(tokens[cut:]), single, rtol=1e-4, atol=1e-5)
    assert decoder._one.traces == decoder._several.traces == 1


@pytest.mark.slow
def test_tokens_are_drawn_by_a_seed(path: Path) -> None:
    file = pb.gguf.read(small(path))
    decoder = pb.gguf.model(file)

    def run(**settings: Any) -> list[int]:
        decoder.reset()
        return list(pb.gguf.generate(decoder, [1, 2, 3], 12, **settings))

    best = run()
    assert best == run(temperature=1.0, top_k=1) == run(temperature=1e-6)
    warm = run(temperature=5.0, seed=3)
    assert warm == run(temperature=5.0, seed=3) != run(temperature=5.0, seed=4)
    assert run(stop=[best[2]]) == best[: best.index(best[2])]
    with pytest.raises(ArgumentError, match="is full"):
        list(pb.gguf.generate(pb.gguf.model(file, context=8), [1, 2, 3], 12))
    for wrong in ({"temperature": -1.0}, {"top_k": -1}, {"temperature": np.inf}):
        with pytest.raises(ArgumentError):
            run(**wrong)


def test_words_are_drawn_by_their_likelihood() -> None:
    rng = np.random.default_rng(0)
    scores = np.log(np.array([0.1, 0.6, 0.05, 0.25], np.float32))
    drawn = np.bincount([chosen(scores, 1.0, 0, rng) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(drawn, [0.1, 0.6, 0.05, 0.25], atol=0.03)
    two = np.bincount([chosen(scores, 1.0, 2, rng) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(two, [0.0, 0.6 / 0.85, 0.0, 0.25 / 0.85], atol=0.03)
    warm = np.bincount([chosen(scores, 2.0, 0, rng) for _ in range(4000)], minlength=4) / 4000
    root = np.sqrt([0.1, 0.6, 0.05, 0.25])
    np.testing.assert_allclose(warm, root / root.sum(), atol=0.03)
    with pytest.raises(StateError, match="NaN"):
        chosen(np.array([0.0, np.nan], np.float32), 0.0, 0, rng)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"general.architecture": "mamba"}, "E583", "`mamba`"),
    ({"general.architecture": None}, "E582", "general.architecture"),
    ({"llama.block_count": None}, "E582", "llama.block_count"),
    ({"llama.block_count": 0}, "E587", "is 0"),
    ({"llama.block_count": 2}, "E582", "blk.1.attn_norm.weight"),
    ({"llama.block_count": "one"}, "E587", "no int"),
    ({"llama.attention.head_count": 3, "llama.attention.head_count_kv": 2}, "E587", "3 heads"),
    ({"llama.attention.key_length": 2**31}, "E587", "(8, 8)"),
    ({"llama.attention.head_count_kv": 2**31}, "E587", "in 2147483648 groups"),
    ({"llama.feed_forward_length": 2**31}, "E587", "(12, 8)"),
    ({"llama.embedding_length": 16}, "E587", "(20, 8)"),
    ({"llama.rope.scaling.type": "yarn"}, "E583", "'yarn'"),
    ({"llama.rope.dimension_count": 6}, "E587", "6 numbers of 4"),
    ({"llama.rope.freq_base": 0.0}, "E587", "powers of 0.0"),
    ({"blk.0.attn_k.weight": None}, "E582", "blk.0.attn_k.weight"),
    ({"blk.0.ffn_gate_exps.weight": np.ones((2, 8), np.float32)}, "E583", "ffn_gate_exps"),
    ({"output_norm.weight": np.ones(9, np.float32)}, "E587", "(9,)"),
]


@pytest.mark.parametrize(("changed", "code", "said"), REFUSED, ids=[c[2] for c in REFUSED])
def test_models_that_are_refused(changed: dict[str, Any], code: str, said: str, path: Path) -> None:
    with pytest.raises(PullbackError) as raised:
        pb.gguf.model(small(path, **changed))
    assert raised.value.code == code and said in raised.value.what, raised.value.what


def test_tokens_and_contexts_out_of_range(path: Path) -> None:
    file = pb.gguf.read(small(path))
    for wrong in (0, 41):
        with pytest.raises(ArgumentError, match="made for 40 places"):
            pb.gguf.model(file, context=wrong)
    decoder = pb.gguf.model(file, context=5)
    for tokens, said in (([], "no tokens"), ([20], "token 20 of 20"), ([-1], "token -1"),
                         (range(6), "6 tokens behind 0")):  # fmt: skip
        with pytest.raises(ArgumentError, match=said):
            decoder.next(tokens)


# --- texts

TEXTS = (
    "The quick brown fox jumps over the lazy dog's tail, 12345 times!\n\n",
    "na\u00efve caf\u00e9 \u2014 \u65e5\u672c\u8a9e \U0001f600 it's we'll don't  three   \t tabs\n",
    " leading", "trailing ", "", "a<|end|>b",
)  # fmt: skip


def tokenizers() -> Any:
    return pytest.importorskip("tokenizers", reason="tokenizers is not installed")


def bytes_vocabulary(split: str = "") -> tuple[dict[str, Any], Any]:
    """A vocabulary of merged bytes as facts, and the tokenizer that learnt it."""
    of = tokenizers()
    theirs, cut = of.Tokenizer(of.models.BPE()), of.pre_tokenizers
    steps = [cut.ByteLevel(add_prefix_space=False, use_regex=not split)]
    before = [cut.Split(of.Regex(split), "isolated")] if split else []
    theirs.pre_tokenizer, theirs.decoder = cut.Sequence([*before, *steps]), of.decoders.ByteLevel()
    trainer = of.trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<|end|>"], initial_alphabet=cut.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    theirs.train_from_iterator(TEXTS[:2] * 3, trainer)
    model = json.loads(theirs.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    types = np.ones(len(tokens), np.int32)
    types[0] = 3
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": 0,
    }, theirs  # fmt: skip


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_texts_as_bytes(pre: str, path: Path) -> None:
    facts, theirs = bytes_vocabulary(pb.gguf.tokens.WORDS[pre])
    pb.gguf.write(path, facts | {"tokenizer.ggml.pre": pre}, {})
    own = pb.gguf.Tokenizer(pb.gguf.read(path))
    for text in TEXTS:
        assert own.encode(text) == theirs.encode(text).ids, text
        assert own.decode(own.encode(text)) == text.replace("<|end|>", "")
    assert own.ends == {0} and own.begin is None


def test_texts_as_pieces(path: Path) -> None:
    """Beside SentencePiece itself, of a model that it learns here."""
    tokenizers()
    theirs = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    story = path.with_name("story.txt")
    rng = np.random.default_rng(0)
    drawn = ["".join(rng.choice(list("abcd"), 7)) for _ in range(300)]  # pieces that overlap
    story.write_text("\n".join([*TEXTS[:2] * 5, *drawn[:200]]))
    theirs.SentencePieceTrainer.train(
        input=str(story), model_prefix=str(path.with_suffix("")), vocab_size=400,
        model_type="bpe", byte_fallback=True, character_coverage=1.0, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    learnt = theirs.SentencePieceProcessor(model_file=str(path.with_suffix(".model")))
    numbers = range(learnt.get_piece_size())
    facts = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [learnt.id_to_piece(n) for n in numbers],
        "tokenizer.ggml.scores": np.array([learnt.get_score(n) for n in numbers], np.float32),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    pb.gguf.write(path, facts, {})
    own = pb.gguf.Tokenizer(pb.gguf.read(path))
    for text in (*TEXTS[:3], " ".join(drawn), "\u00df \u20ac"):
        assert own.encode(text) == [1, *learnt.encode(text)], text
        assert own.decode(own.encode(text)[1:]) == text


WRONG_WORDS: list[tuple[dict[str, Any], str]] = [
    ({"tokenizer.ggml.model": "bert"}, "`bert`"),
    ({"tokenizer.ggml.pre": "tekken"}, "`tekken`"),
    ({"tokenizer.ggml.merges": ["a b c"]}, "not of two"),
    ({"tokenizer.ggml.merges": ["zz qq"]}, "zz"),
    ({"tokenizer.ggml.tokens": ["a", "a"]}, "alike"),
    ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, "`token_type`"),
    ({"tokenizer.ggml.eos_token_id": 10**6}, "`eos_token_id`"),
    ({"tokenizer.ggml.model": "llama"}, "no scores"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG_WORDS, ids=[c[1] for c in WRONG_WORDS])
def test_vocabularies_that_are_refused(changed: dict[str, Any], said: str, path: Path) -> None:
    facts, _ = bytes_vocabulary()
    pb.gguf.write(path, facts | changed, {})
    with pytest.raises((StateError, UnsupportedError)) as raised:
        pb.gguf.Tokenizer(pb.gguf.read(path))
    assert raised.value.code == "E584" and said in raised.value.what, raised.value.what


# --- the command


def call(*args: str) -> Result:
    return CliRunner().invoke(main.commands, ["generate", *args])


def test_the_command_goes_on_with_a_text(path: Path) -> None:
    facts, theirs = bytes_vocabulary()
    words = len(facts["tokenizer.ggml.tokens"])
    rng = np.random.default_rng(3)
    tables = {
        f"{n}.weight": rng.normal(size=(words, 8)).astype(np.float32)
        for n in ("token_embd", "output")
    }
    small(path, **(facts | tables))
    prompt = "the fox"
    given = theirs.encode(prompt).ids
    want = list(pb.gguf.generate(pb.gguf.model(path), given, 9, stop=[0]))
    told = call(str(path), "--prompt", prompt, "--tokens", "9", "--json")
    assert told.exit_code == 0, told.output
    facts = json.loads(told.stdout)
    assert facts["tokens"] == want and facts["prompt_tokens"] == len(given)
    assert facts["text"] == theirs.decode(want)
    shown = call(str(path), "--prompt", prompt, "--tokens", "9")
    whole = theirs.decode([*given, *want])
    assert shown.stdout.startswith(prompt) and whole.startswith(shown.stdout[:-1])
    assert len(whole.rstrip("\ufffd")) <= len(shown.stdout[:-1])
    numbers = call(str(path), "--ids", " ".join(map(str, given)), "--tokens", "9")
    plain = list(pb.gguf.generate(pb.gguf.model(path), given, 9))
    assert numbers.stdout.split() == [str(n) for n in (*given, *plain)]


def test_the_command_refuses_by_code(path: Path) -> None:
    path.write_bytes(b"GGUF")
    for args, code in (((str(path), "--prompt", "x"), "E580"),):
        result = call(*args)
        assert result.exit_code == 2 and f"[{code}]" in result.output, result.output
    for args in ((), ("--prompt", "x", "--ids", "1"), ("--ids", "x")):
        assert call(str(path), *args).exit_code == 2


WORDS: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["<end>", "a", "b", "ab", "\u00c3"],
    "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.token_type": np.int32([3, 1, 1, 1, 1]),
    "tokenizer.ggml.bos_token_id": 0,
}  # fmt: skip
PIECES = WORDS | {
    "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<u>", "\u2581", "a", "b", "ab"],
    "tokenizer.ggml.scores": np.zeros(5, np.float32),
}  # fmt: skip


def words_of(path: Path, facts: dict[str, Any]) -> pb.gguf.Tokenizer:
    pb.gguf.write(path, facts, {})
    return pb.gguf.Tokenizer(pb.gguf.read(path))


def test_texts_that_have_no_tokens_are_refused(path: Path) -> None:
    """What the vocabulary lacks is not left out; of \u00e9, it has one byte of two."""
    tokenizers()
    own = words_of(path, WORDS)
    assert own.encode("ab<end>a") == [3, 0, 1] and own.encode("") == []
    for text, said in (("abc", "'c'"), ("a b", "' '"), ("\u00e9", "'\u00e9'"), ("\udcff", "UTF-8")):
        with pytest.raises(StateError, match=said) as raised:
            own.encode(text)
        assert raised.value.code == "E618"
    own = words_of(path, PIECES)
    assert own.encode("ab a") == [0, 1, 4, 1, 2]
    with pytest.raises(StateError, match="no token for 'c'"):
        own.encode("ac")
    known = words_of(path, PIECES | {"tokenizer.ggml.unknown_token_id": 0})
    assert known.encode("ac") == [0, 1, 2, 0]


ASKED = (("--prompt", ""), ("--prompt", "a" * 41), ("--prompt", "a\udcff"), ("--prompt", "zz"),
         ("--ids", "1 20"), ("--ids", ""))  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_prompts_that_no_model_takes(asked: tuple[str, str], path: Path) -> None:
    tokenizers()
    done = call(str(small(path, **WORDS)), *asked, "--tokens", "2")
    assert done.exit_code == 2 and re.search(r"\[E(585|618)\]", done.output), done.output
