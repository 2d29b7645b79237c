"""What a fresh engine says to requests of the passed routes, on the directory of each version.

`python -m tests.inference.vllm.fresh DIRECTORY...` reads a list of [route, body, prompt tokens] and
prints, for each directory, the choices of each: token ids and log-probabilities.  Every request is
made into sampling parameters by vLLM's own code and asked alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.inference.vllm.exact import start_engine
from tests.inference.vllm.installed import environment
from tests.inference.vllm.server import GRAMMAR, TOOL_PARSER

Choices = list[list[Any]]  # [token ids, log-probabilities] of each


def said_by_fresh_engines(directories: Sequence[Path], asked: list[Any]) -> list[list[Choices]]:
    """Run this module in a process of its own, because vLLM is no good guest in another."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, *map(str, directories)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment(VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said: list[list[Choices]] = json.loads(done.stdout.splitlines()[-1])
    return said


def main(directories: Sequence[str], asked: list[Any]) -> list[list[Choices]]:
    kept: list[Any] = []  # the end of one takes vLLM's process groups from all of them
    said = []
    for directory in directories:
        modes = {"logprobs_mode": "processed_logprobs", "structured_outputs_config": GRAMMAR}
        kept.append(start_engine(Path(directory), **modes))
        said.append([_ask(kept[-1], *request) for request in asked])
    return said


def _ask(engine: Any, route: str, body: dict[str, Any], prompt: list[int]) -> Choices:
    (output,) = engine.generate(
        [{"prompt_token_ids": prompt}], _params(engine, route, body), use_tqdm=False
    )
    return [
        [
            list(made.token_ids),
            [float(p[t].logprob) for t, p in zip(made.token_ids, made.logprobs, strict=True)],
        ]
        for made in output.outputs
    ]


def _params(engine: Any, route: str, body: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.sampling_params import RequestOutputKind
    from vllm.tool_parsers import ToolParserManager

    if "sampling_params" in body:
        return SamplingParams(**body["sampling_params"])
    request = ChatCompletionRequest(**body)
    if request.tools:
        parser = ToolParserManager.get_tool_parser(TOOL_PARSER)
        request = parser(engine.get_tokenizer(), request.tools).adjust_request(request)
    params = request.to_sampling_params(request.max_tokens, {})
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:], json.load(sys.stdin))))
