#!/usr/bin/env python3
"""Writes the small vocabularies and the expected ids under tests/data/tokenizer/.

Needs the packages `tokenizers` (made with 0.22) and `sentencepiece` (0.2):
  python3 tests/reference/make_tokenizer_goldens.py
The vocabularies are trained here on texts of this repository; nothing is downloaded.
"""
import io
import json
import pathlib

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

from tokenizer_corpus import TEXTS

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizer"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
APOSTROPHE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
QWEN2 = APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD1 = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+"
WORD2 = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
             r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE = {
    "gpt-2": [GPT2],
    "smollm": ["digits", GPT2],
    "llama-bpe": [LLAMA3],
    "qwen2": [QWEN2],
    "qwen35": [APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "gpt-4o": [WORD1 + APOSTROPHE + "?|" + WORD2 + APOSTROPHE + r"?|\p{N}{1,3}" + SLASH_TAIL],
    "tekken": [WORD1 + "|" + WORD2 + r"|\p{N}" + SLASH_TAIL],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", "digits"],
    "deepseek-v3": [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK3],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "seed-coder": [APOSTROPHE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
                   r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
}
# deepseek-llm's expressions are the longest; ranges as in its tokenizer.json.
NFC = {"qwen2", "qwen35"}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def splits(patterns):
    parts = [pre.Digits(individual_digits=True) if p == "digits"
             else pre.Split(Regex(p), "isolated") for p in patterns]
    return pre.Sequence(parts + [pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def training_texts():
    """Lines of the corpus, several times, so that merges run across every kind of border."""
    source = pathlib.Path(__file__).resolve().parents[2]
    prose = [p.read_text() for p in sorted((source / "tests" / "reference").glob("*corpus.py"))]
    return TEXTS * 3 + [line for text in prose for line in text.splitlines()]


def byte_bpe():
    """Trained without any split: its merges cross borders, so that wrong splits show."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=1800, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre.ByteLevel.alphabet(), max_token_length=12)
    tokenizer.train_from_iterator(training_texts(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False, special=False)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def char_bpe(normalizer):
    """Merges over characters with bytes as fallback: gemma's and llama 2's tokenizer.json."""
    base = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    base.pre_tokenizer = pre.Metaspace()
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=names, show_progress=False,
                                  limit_alphabet=180)
    base.train_from_iterator(training_texts(), trainer)
    spec = json.loads(base.to_str())
    spec["pre_tokenizer"] = None
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.normalizer = normalizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def ids_of(tokenizer, texts=TEXTS, add=False):
    return [tokenizer.encode(t, add_special_tokens=add).ids for t in texts]


def save(name, data):
    (OUT / name).write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")


def sentencepiece_goldens():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t for t in training_texts() if t.strip()]), model_writer=model,
        model_type="bpe", vocab_size=1100, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, user_defined_symbols=["<tool>", "\n\n"],
        minloglevel=2, max_sentence_length=10000)
    out = {}
    for prefix in (True, False):
        from sentencepiece import sentencepiece_model_pb2 as proto
        spec = proto.ModelProto.FromString(model.getvalue())
        spec.normalizer_spec.add_dummy_prefix = prefix
        sp = sentencepiece.SentencePieceProcessor(model_proto=spec.SerializeToString())
        out["ids_with_prefix" if prefix else "ids_without_prefix"] = [sp.encode(t) for t in TEXTS]
    out["tokens"] = [p.piece for p in spec.pieces]
    out["scores"] = [p.score for p in spec.pieces]
    out["kinds"] = [p.type for p in spec.pieces]  # the numbers are GGUF's
    save("sentencepiece.json", out)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    save("texts.json", TEXTS)
    tokenizer = byte_bpe()
    tokenizer.pre_tokenizer = splits(PRE["llama-bpe"])
    tokenizer.save(str(OUT / "byte_bpe.json"), pretty=False)
    goldens = {}
    for name, patterns in PRE.items():
        tokenizer.pre_tokenizer = splits(patterns)
        tokenizer.normalizer = normalizers.NFC() if name in NFC else normalizers.Sequence([])
        goldens[name] = ids_of(tokenizer)
    save("byte_bpe_ids.json", goldens)
    replace = normalizers.Replace(" ", "\u2581")
    for name, normalizer in (("char_bpe", replace),
                             ("char_bpe_prefix", normalizers.Sequence(
                                 [normalizers.Prepend("\u2581"), replace]))):
        tokenizer = char_bpe(normalizer)
        tokenizer.save(str(OUT / f"{name}.json"), pretty=False)
        save(f"{name}_ids.json", ids_of(tokenizer, add=True))
    sentencepiece_goldens()


if __name__ == "__main__":
    main()
