#!/usr/bin/env python3
"""Records what Hugging Face's `tokenizers` package makes of texts that are hard to tokenize.

    pip install tokenizers==0.23.3
    tools/fetch_gpt2_vocab.sh .cache/gpt2
    python3 tests/golden/tokenizer/make.py .cache/gpt2

writes, beside this script, tiny.json (a byte-level BPE of 2000 tokens in the shape of GPT-2's tokenizer.json, trained
here) and expected.json: the texts, and for each shape a JSON merge patch on tiny.json and the ids of every text.
The shape "gpt2" has no patch: its ids are those of the real vocabulary.
"""
import glob
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")

TEXTS = {
    "empty": "",
    "english": "It was a bright cold day in April, and the clocks were striking thirteen. Winston's \"friend\" said: "
               "we'll see; they've gone, I'm sure he'd know -- don't you?",
    "upper contractions": "IT'S WE'LL THEY'VE I'M HE'D DON'T YOU'RE 'S 'T ' s 'sss '\u017f 'lLl",
    "code": "int main(int argc, char** argv) {\n\tfor (int i = 0; i < 10; ++i) {\n\t\tprintf(\"%d\\n\", i);\n\t}\n"
            "    return x->y[0] != 0x1F ? a_b : ~c;  // done\n}\n",
    "python": "def f(x):\n    if x:\n        return {'a': 1}\n\n\n    return None   \n\t\n",
    "crlf": "line one\r\nline two\r\n\r\n  indented\r\n\rlone\r",
    "emoji": "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \u2764\ufe0f "
             "\U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd\U0001f3f4\U000e0067\U000e0062\U000e007f",
    "cjk": "\u6211\u4eec\u7684\u6a21\u578b\u5728\u8bad\u7ec3\u3002\u6771\u4eac\u3001\u30ab\u30bf\u30ab\u30ca "
           "\u3072\u3089\u304c\u306a \ud55c\uad6d\uc5b4\u3000\u5168\u89d2",
    "arabic": "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645 \u0661\u0662\u0663\u061f "
              "\u202bx\u202c \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "marks": "e\u0301 a\u0308\u0323 \u1e9b\u0323 q\u0307\u0323 \u0301lone \u0928\u093f\u0930\u094d\u0926\u0947\u0936 "
             "\u1100\u1161\u11a8 \u212b\u2126 \u0344 \uf900\ufb1d \u0958 \u0061\u0315\u0300\u05ae\u0300\u0062",
    "digits": "0 12 123 1234 12345678901234567890 3.14159 1,000,000 1e-5 \u00bd\u00b2\u2167 \u0967\u0968\u0969 v1.2.3-rc4",
    "spaces": "a  b   c    d     e" + " " * 17 + "f" + " " * 40 + "\n" + " " * 9,
    "tabs": "a\t\tb\t \tc \t d\u00a0e\u00a0\u00a0f\u2003g\u200bh\u180ei\u0085j\u2028k\u2029l\v\fm\ufeff",
    "newlines": "\n\na\n\n\nb \n c\n \n\n   \n d\n",
    "controls": "\x00\x01a\x00\x00b \x00 \x7f\x1b[0m\x08",
    "long word": "pneumonoultramicroscopicsilicovolcanoconiosis" * 40,
    "long run": "=" * 500 + "ab" * 300 + "A" * 257,
    "special": "<|endoftext|>one<|endoftext|> two <|endoftext|><|endoftext|>\n<|endoftext |> <|endoftex <|<|endoftext|>|>",
    "more special": "<|begin|>system<|beginning|> x<|begin|><|end|>\n<|end|> e<|end|>\u0301 <added> word<added>s  <added>",
    "urls": "https://example.org/a_b?c=d&e=%20#f user@host:~/x/y.tar.gz C:\\dir\\file",
    "latin": "na\u00efve caf\u00e9 \u00dcber \u00f1 \u0142\u00f3d\u017a \u00df\u00c6 \u0130\u0131 \u01c5 \u00b5m \u00aa\u00ba",
    "greek": "\u0391\u03b8\u03ae\u03bd\u03b1 \u041c\u043e\u0441\u043a\u0432\u0430 \u0539 \u10d0\u10d1 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "symbols": "\u2200x\u2208\u211d: x\u00b2\u22650 \u2014 \u201cquoted\u201d \u20ac5 \u00a9\u2122 \u2192 \U0001d4d0\U00010348\U0010fffd\ue000",
}


def fuzz(count):
    """Texts of pieces that meet in ways nobody writes."""
    pieces = ["'s", "'S", "'ll", "'", " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "a", "the", " the", "ing",
              "Z", "\u00e9", "e\u0301", "\u0301", "\u0323", "\u6f22", "\u1100", "\u1161", "\u11a8", "\uac00", "1", "22", "333",
              "\u0663", "\u00bd", ".", "...", "_", "-", "<|", "|>", "<|endoftext|>", "<|begin|>", "<added>", "\U0001f600",
              "\u200d", "\ufe0f", "\x00", "\u1e9b", "\u212b", "\u0344", "\u0915\u093c", "x" * 20]
    rng = random.Random(20)
    return {f"fuzz {i}": "".join(rng.choice(pieces) for _ in range(rng.randint(2, 25))) for i in range(count)}


def train():
    """A small vocabulary; what it is trained on matters little, as it is committed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  special_tokens=["<|endoftext|>"], show_progress=False)
    sources = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "[a-h]*.py")))
    corpus = [open(path, encoding="utf-8").read() for path in sources] + list(TEXTS.values()) * 3
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())


def added(content, token_id, **options):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True, **options}


def shapes(tiny):
    size = len(tiny["model"]["vocab"])
    end = tiny["added_tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = lambda pattern, **options: {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                                        "invert": False, **options}
    sequence = lambda *steps: {"type": "Sequence", "pretokenizers": list(steps)}
    pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in tiny["model"]["merges"]]
    # Words that no merge reaches: only ignore_merges finds them.
    whole_words = {"\u0120striking": size, "printf": size + 1, "\u00c4\u00b1\u00c7": size + 2}
    return {
        "tiny": {},
        "llama3": {
            "added_tokens": end + [added("<|begin|>", size + 3), added("<|beginning|>", size + 4),
                                   added("<|end|>", size + 5)],
            "pre_tokenizer": sequence(split(LLAMA3), byte_level),
            "model": {"ignore_merges": True, "vocab": whole_words, "merges": pairs},
        },
        "neox": {
            "normalizer": {"type": "NFC"},
            "added_tokens": end + [added(" " * n, size + 24 - n, normalized=True, special=False) for n in range(24, 1, -1)]
            + [added("<added>", size + 23, normalized=True, special=False),
               added("\u212b", size + 24, normalized=True, special=False)],
        },
        "digits": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True},
                                             {**byte_level, "use_regex": True})},
        "removed": {"pre_tokenizer": sequence(split(r"\s+", behavior="Removed"),
                                              split(r"[\p{L}\p{M}]+|\d{2}|[^\w\s]".replace(r"\w", r"\p{L}\p{M}\p{N}_"),
                                                    behavior="Removed", invert=True), byte_level)},
        "literal": {"pre_tokenizer": sequence({"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated",
                                               "invert": False}, byte_level)},
    }


def merge_patch(target, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def gpt2(folder):
    tokenizer = Tokenizer(models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def main():
    texts = {**TEXTS, **fuzz(120)}
    tiny = train()
    record = lambda tokenizer: [tokenizer.encode(text, add_special_tokens=False).ids for text in texts.values()]
    expected = {"texts": [[name, text] for name, text in texts.items()],
                "shapes": [{"name": "gpt2", "patch": None, "ids": record(gpt2(sys.argv[1]))}]}
    for name, patch in shapes(tiny).items():
        ids = record(Tokenizer.from_str(json.dumps(merge_patch(tiny, patch))))
        expected["shapes"].append({"name": name, "patch": patch, "ids": ids})
    tiny["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in tiny["model"]["merges"]]
    with open(f"{HERE}/tiny.json", "w") as out:
        json.dump(tiny, out, separators=(",", ":"))
        out.write("\n")
    with open(f"{HERE}/expected.json", "w") as out:
        out.write(json.dumps(expected, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


main()
