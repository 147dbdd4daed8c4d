"""special_tokens.py: what transformers' tokenizer("Hello") gives for the directories of special_tokens_test.cpp.

Run it in an environment with transformers, sentencepiece and protobuf; it writes tokenizer/special_tokens.json.
"""
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers

HERE = Path(__file__).parent
TINY = json.loads((HERE / "tokenizer/tiny.json").read_text())
END = TINY["added_tokens"][0]
PIECES = HERE / "sentencepiece/bpe.model"
LLAMA = {"tokenizer_class": "LlamaTokenizer"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}


def template(*single):
    special = {"id": END["content"], "ids": [END["id"]], "tokens": [END["content"]]}
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": list(single), "pair": pair, "special_tokens": {END["content"]: special}}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
SPECIAL = {"SpecialToken": {"id": END["content"], "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
BEFORE = {"type": "Sequence", "processors": [BYTES, template(SPECIAL, TEXT)]}

# name: (post_processor of a tokenizer.json, or "none" for no such file; vocab.json or tokenizer.model beside; tokenizer_config.json)
CASES = {
    "json": (None, None, FAST),
    "json-before": (BEFORE, None, FAST),
    "json-around": (template(SPECIAL, TEXT, SPECIAL), None, FAST),
    "json-plain": (template(TEXT), None, {**FAST, "add_bos_token": True, "bos_token": END["content"]}),
    "json-decides": (BEFORE, None, {**FAST, "add_bos_token": False}),
    "pair": ("none", "vocab.json", None),
    "pair-before": ("none", "vocab.json", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True}),
    "pair-around": ("none", "vocab.json", {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_eos_token": True}),
    "pieces": ("none", "tokenizer.model", LLAMA),
    "pieces-before": ("none", "tokenizer.model", {**LLAMA, "add_bos_token": True, "bos_token": {"__type": "AddedToken", "content": "<s>"}}),
    "pieces-around": ("none", "tokenizer.model", {**LLAMA, "add_bos_token": True, "add_eos_token": True}),
    "pieces-off": ("none", "tokenizer.model", {**LLAMA, "add_bos_token": False}),
    "pieces-nameless": ("none", "tokenizer.model", {**LLAMA, "add_bos_token": True, "bos_token": None}),
}


def ids_of(processor, beside, config):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama" if beside == "tokenizer.model" else "gpt2"}))
        if processor != "none":
            (folder / "tokenizer.json").write_text(json.dumps({**TINY, "post_processor": processor}))
        if beside == "tokenizer.model":
            shutil.copy(PIECES, folder / beside)
        if beside == "vocab.json":
            (folder / beside).write_text(json.dumps(TINY["model"]["vocab"]))
            (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(TINY["model"]["merges"]) + "\n")
        if config:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return transformers.AutoTokenizer.from_pretrained(folder)("Hello").input_ids


cases = {
    name: {"post_processor": p, "beside": b, "config": c, "ids": ids_of(p, b, c)} for name, (p, b, c) in CASES.items()
}
out = {"transformers": transformers.__version__, "text": "Hello", "cases": cases}
(HERE / "tokenizer/special_tokens.json").write_text(json.dumps(out, indent=1) + "\n")
