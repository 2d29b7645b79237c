"""Publishes weights that live on an accelerator: what changed is found there.

Objects and records are those of `Publisher`, byte for byte.  The publisher still copies every new
version to the host, once: it hashes that copy, proves the patch against it and keeps it as the next
base, so that an error on the device's side stops a version instead of becoming one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from skerry.codec.digest import Digest
from skerry.codec.encode import EncodedPack, encode_pack
from skerry.codec.layout import Layout
from skerry.codec.level import Level
from skerry.codec.tensors import Read
from skerry.codec.weights import WeightsDigest
from skerry.publisher import Publisher, PublishReport
from skerry.trainer.device_scan import encode_on_device

Tensors = Mapping[str, torch.Tensor]


class DevicePublisher:
    """Keeps the tensors of the version that it published last, to compare the next ones with.

    They stay on their device and must not be written to: cast or copy what the optimizer moves.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._held: tuple[Digest, Tensors] | None = None

    def publish_arrays(
        self,
        tensors: Tensors,
        *,
        step: int,
        side_files: Mapping[str, bytes] | None = None,
        recipe: Mapping[str, object] | None = None,
        force_full: bool = False,
    ) -> PublishReport:
        """Publish tensors in served precision, as `Publisher.publish_arrays` does."""
        report = self._publisher.publish_arrays(
            tensors,
            step=step,
            side_files=side_files,
            recipe=recipe,
            force_full=force_full,
            encoder=partial(self._encode, tensors),
        )
        self._held = report.digest, tensors
        return report

    def _encode(
        self,
        tensors: Tensors,
        layout: Layout,
        old: Read,
        new: Read,
        *,
        base: Digest,
        files: Mapping[str, bytes],
        level: Level,
        threads: int,
        digests: WeightsDigest,
    ) -> EncodedPack:
        digest, held = self._held or (None, {})
        # Others are the base after a restart, a rollback, or a commit that was not known to be one.
        if digest == base:
            return encode_on_device(
                layout,
                held,
                tensors,
                base=base,
                files=files,
                level=level,
                threads=threads,
                digests=digests,
            )
        return encode_pack(
            layout,
            old,
            new,
            base=base,
            files=files,
            level=level,
            threads=threads,
            digests=digests,
        )
