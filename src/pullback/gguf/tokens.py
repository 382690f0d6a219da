"""Texts as tokens and back, by the vocabulary of a file; the package `tokenizers` does the work.

Two kinds of vocabulary: `gpt2`, bytes that are merged by a list of pairs, in words that an
expression cuts; and `llama`, pieces of SentencePiece with a score each, whose pairs follow from
those: what is made of two pieces is merged in the order of its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pullback.errors import ExtraError, PullbackError, StateError, UnsupportedError
from pullback.gguf.reader import File

KEY = "tokenizer.ggml"
CONTROL, OWN = 3, 4  # types of tokens: marks, and words of the user's, which stand for themselves
LONGEST = 256  # characters of a piece: its cuts are tried, one by one
SPACE = "\u2581"
BYTES = {f"<0x{n:02X}>" for n in range(256)}  # pieces for what no other piece says
# How texts are cut into words before pairs are merged, by the name that a file gives; "" is GPT-2's
# own. Source: the tokenizers that these models were published with.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "gpt-2": "", "default": "", "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3,
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
}  # fmt: skip
WHOLE = ("llama-bpe", "llama3", "llama-v3")  # words of the vocabulary are not merged from pairs


def _library() -> Any:
    """The package, imported lazily. Raises: ExtraError where it is not installed."""
    try:
        import tokenizers
    except ModuleNotFoundError:
        what = "texts as tokens need the package `tokenizers`"
        raise ExtraError(what, help="pip install 'pullback[gguf]'", code="E328") from None
    return tokenizers


class Tokenizer:
    """`encode(text)` gives the tokens, behind the file's mark of a beginning; `decode(tokens)`
    the text, without marks.
    """

    def __init__(self, file: File) -> None:
        self.library = _library()
        self.file = file
        self.tokens: list[str] = file.fact(f"{KEY}.tokens", list)
        self.lossy = False  # the package leaves out what has no token
        family = self.family = file.fact(f"{KEY}.model", str)
        if family not in ("gpt2", "llama"):
            what = f"a tokenizer of `{family:.40}` in {file.path}; `gpt2` and `llama` are read"
            raise UnsupportedError(what, code="E584")
        vocabulary = {token: number for number, token in enumerate(self.tokens)}
        if len(vocabulary) < len(self.tokens) or not all(map(_is_text, self.tokens)):
            raise self._wrong("two tokens are alike, or one is no text")
        try:
            self.own = (self._bytes if family == "gpt2" else self._pieces)(vocabulary)
            self._marks()
        except PullbackError:
            raise
        except Exception as error:  # what the package raises has no class of its own
            raise self._wrong(str(error)) from error
        begin = self.file.fact(f"{KEY}.add_bos_token", bool, family == "llama")
        self.begin = self._token("bos_token_id") if begin else None
        ends = ("eos_token_id", "eot_token_id")
        self.ends = frozenset(t for t in map(self._token, ends) if t is not None)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises: StateError where a part of it has none."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            what = f"the text is no UTF-8: {text[error.start]!a} at {error.start}"
            raise StateError(what, help="write it as UTF-8", code="E618") from None
        made = self._told(text)
        if self.lossy and not self._says(made, text):
            first = next(c for c in [*text, text] if not self._says(self._told(c), c))
            what = f"{self.file.path} has no token for {first!r:.40}"
            raise StateError(what, code="E618")
        return made if self.begin is None else [self.begin, *made]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        made: str = self.own.decode(list(tokens), skip_special_tokens=True)
        return made

    def _told(self, text: str) -> list[int]:
        made: list[int] = self.own.encode(text, add_special_tokens=False).ids
        return made

    def _says(self, tokens: list[int], text: str) -> bool:
        """Whether tokens are all of a text; of pieces, which begin with a space, spaces apart."""
        back = self.own.decode(tokens, skip_special_tokens=False)
        if self.family == "gpt2":
            return bool(back == text)
        return "".join(back.split()) == "".join(text.replace(SPACE, " ").split())

    # --- of a file

    def _wrong(self, what: str) -> StateError:
        return StateError(f"the vocabulary of {self.file.path}: {what:.200}", code="E584")

    def _bytes(self, vocabulary: Mapping[str, int]) -> Any:
        """Bytes, merged by a list of pairs."""
        name = self.file.fact(f"{KEY}.pre", str, "default")
        if name not in WORDS:
            what = f"words are cut as `{name:.40}` in {self.file.path}"
            raise UnsupportedError(what, help=f"known are {', '.join(WORDS)}", code="E584")
        listed = self.file.fact(f"{KEY}.merges", list)
        merges = [tuple(pair.split(" ")) for pair in listed]
        if not all(len(pair) == 2 for pair in merges):
            raise self._wrong("a merge that is not of two")
        model = self.library.models.BPE(dict(vocabulary), merges, ignore_merges=name in WHOLE)
        made = self.library.Tokenizer(model)
        cut, split = self.library.pre_tokenizers, WORDS[name]
        self.lossy = not vocabulary.keys() >= set(cut.ByteLevel.alphabet())
        steps = [cut.ByteLevel(add_prefix_space=False, use_regex=not split)]
        if split:
            steps.insert(0, cut.Split(self.library.Regex(split), "isolated"))
        made.pre_tokenizer = cut.Sequence(steps)
        made.decoder = self.library.decoders.ByteLevel()
        return made

    def _pieces(self, vocabulary: Mapping[str, int]) -> Any:
        """Pieces of SentencePiece: pairs by the score of what they make."""
        scores = self._array("scores")
        if scores is None or max(map(len, vocabulary), default=0) > LONGEST:
            raise self._wrong(f"no scores, or pieces of more than {LONGEST} characters")
        merges = _merges(vocabulary, scores)
        unknown = self._token("unknown_token_id")
        self.lossy = unknown is None and not vocabulary.keys() >= BYTES
        made = self.library.Tokenizer(
            self.library.models.BPE(
                dict(vocabulary),
                merges,
                unk_token=None if unknown is None else self.tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        change, back = self.library.normalizers, self.library.decoders
        prefix = self.file.fact(f"{KEY}.add_space_prefix", bool, True)
        spaces = [change.Prepend(SPACE)] if prefix else []
        made.normalizer = change.Sequence([*spaces, change.Replace(" ", SPACE)])
        joined = [back.Replace(SPACE, " "), back.ByteFallback(), back.Fuse()]
        made.decoder = back.Sequence([*joined, *([back.Strip(" ", 1, 0)] if prefix else [])])
        return made

    def _marks(self) -> None:
        """Marks and words of the user's stand in texts for themselves."""
        types = self._array("token_type")
        if types is None:
            return
        marks = [self.tokens[n] for n in np.flatnonzero(types == CONTROL)]
        own = [self.tokens[n] for n in np.flatnonzero(types == OWN)]
        self.own.add_special_tokens([m for m in marks if m])
        self.own.add_tokens([self.library.AddedToken(t, normalized=False) for t in own if t])

    def _array(self, key: str) -> np.ndarray[Any, Any] | None:
        """A number for each token. Raises: StateError where there are more or fewer."""
        given = self.file.facts.get(f"{KEY}.{key}")
        if given is None:
            return None
        if not isinstance(given, np.ndarray) or len(given) != len(self.tokens):
            raise self._wrong(f"`{key}` has not one number for each of {len(self.tokens)} tokens")
        return given

    def _token(self, key: str) -> int | None:
        """A token that has a meaning, if the file has one. Raises: StateError for no token."""
        number = self.file.facts.get(f"{KEY}.{key}")
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(self.tokens):
            raise self._wrong(f"`{key}` is {number!r:.40} of {len(self.tokens)} tokens")
        return number


def _is_text(token: Any) -> bool:
    return isinstance(token, str)


def _merges(vocabulary: Mapping[str, int], scores: np.ndarray[Any, Any]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best score first; of one piece, by their numbers."""
    pairs: list[tuple[float, int, int, str, str]] = []
    for piece, number in vocabulary.items():
        cuts = [(piece[:n], piece[n:]) for n in range(1, len(piece))]
        known = [(a, b) for a, b in cuts if a in vocabulary and b in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        pairs += [(float(scores[number]), len(a), len(b), a, b) for a, b in known]
    pairs.sort(key=lambda pair: pair[:3], reverse=True)
    return [(a, b) for *_, a, b in pairs]
