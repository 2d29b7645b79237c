"""The tokenizer of a checkpoint directory, for engines that take token ids."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer


def read_tokenizer(directory: Path) -> Tokenizer:
    """Raises ValueError for a file that is no tokenizer, OSError for none."""
    text = (directory / "tokenizer.json").read_text(encoding="utf-8")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"tokenizer.json: {error}") from error
