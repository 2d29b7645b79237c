"""Short chat prompts, in the form that the models were trained on."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from skerry.trainer.tokenizer_files import IM_END, IM_START

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

QUESTIONS = (
    "Write one sentence about the sea.",
    "What is the capital of France?",
    "Name three animals that live in a forest.",
    "Describe the taste of an apple.",
    "Why is the sky blue?",
    "Give me a tip for a good night's sleep.",
    "Tell me a very short story about a robot.",
    "What do you need to bake bread?",
)


def chat_prompt(question: str, *, system: str | None = SYSTEM) -> str:
    """Return the text that ends where the assistant's answer begins; `system` None: without one."""
    said = "" if system is None else f"{IM_START}system\n{system}{IM_END}\n"
    return f"{said}{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n"


def encoded(
    tokenizer: Tokenizer, questions: Sequence[str] = QUESTIONS, *, system: str | None = SYSTEM
) -> list[tuple[int, ...]]:
    """Return the tokens of each question's prompt."""
    return [tuple(tokenizer.encode(chat_prompt(q, system=system)).ids) for q in questions]
