"""`tokenizer.json` of a byte-level BPE vocabulary, and the chat markers that the models know."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level_bpe(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]], special: Sequence[str]
) -> Tokenizer:
    """Return the tokenizer whose token number n is `tokens[n]`.

    Text is cut as GPT-2 cuts it, with every digit on its own first; the `special` tokens, which are
    among `tokens`, are found in text before that.
    """
    tokenizer = Tokenizer(
        BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=list(merges))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    if tokenizer.get_vocab_size() != len(tokens):
        raise ValueError(
            f"{len(tokens)} tokens expected, {tokenizer.get_vocab_size()} are in the tokenizer"
        )
    return tokenizer


def tokenizer_files(
    tokenizer: Tokenizer, *, context: int, chat_template: str = CHAT_TEMPLATE
) -> dict[str, bytes]:
    """Return `tokenizer.json` and `tokenizer_config.json`, as other software expects them."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": IM_START,
        "eos_token": IM_END,
        "pad_token": IM_END,
        "unk_token": END_OF_TEXT,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False).encode(),
        "tokenizer_config.json": json_bytes(config),
    }


def json_bytes(value: object) -> bytes:
    """Return the JSON text of a side file: indented, keys sorted, one newline at the end."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
