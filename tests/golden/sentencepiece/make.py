#!/usr/bin/env python3
"""Trains two small SentencePiece models and records the ids that the Python package gives.

    pip install sentencepiece
    python3 tests/golden/sentencepiece/make.py

writes, beside this script, bpe.model (as Llama's: BPE, bytes for what is unknown, white space kept), unigram.model
(white space cleaned, no bytes) and expected.json: for each model and each of the texts of ../tokenizer/expected.json,
in their order, the ids and what they decode to.
"""
import json
import pathlib
import random
import tempfile

import sentencepiece as spm

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {
    "bpe": {"model_type": "bpe", "vocab_size": 700, "byte_fallback": True, "split_digits": True,
            "remove_extra_whitespaces": False, "user_defined_symbols": ["<added>"]},
    "unigram": {"model_type": "unigram", "vocab_size": 300, "byte_fallback": False, "character_coverage": 0.98},
}


def corpus():
    """Sentences of made-up words, as long as it takes to have something to merge."""
    rng = random.Random(7)
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er", "ing")]
    words = ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 3))) for _ in range(400)]
    extra = ["naïve", "café", "Привет", "мир", "東京", "모델", "don't", "x->y[0]", "3.14", "2024", "the", "and", "It's"]
    return [" ".join(rng.choice(words + extra * 4) for _ in range(rng.randint(3, 12))) + rng.choice(".?!")
            for _ in range(3000)]


def main():
    texts = [text for _, text in json.loads((HERE.parent / "tokenizer" / "expected.json").read_text())["texts"]]
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "corpus.txt"
        path.write_text("\n".join(corpus()))
        for name, options in MODELS.items():
            spm.SentencePieceTrainer.train(input=str(path), model_prefix=f"{folder}/{name}", num_threads=1,
                                           normalization_rule_name="identity", minloglevel=2, **options)
            model = (pathlib.Path(folder) / f"{name}.model").read_bytes()
            (HERE / f"{name}.model").write_bytes(model)
            processor = spm.SentencePieceProcessor(model_proto=model)
            ids = [processor.encode(text) for text in texts]
            expected[name] = {"vocab_size": processor.get_piece_size(), "ids": ids,
                              "decoded": [processor.decode(one) for one in ids]}
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


main()
