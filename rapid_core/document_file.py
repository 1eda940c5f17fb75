"""The file of a prefilled document: safetensors with keys, values, ids, text and chunk vectors.

It is written piece by piece, so that no second copy of the cache is made, beside its final name
and then renamed. Its checksum covers the header and every byte behind it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rapid_core.errors import SavedDocumentError
from rapid_core.fingerprint import Fingerprint
from rapid_core.retrieval import EmbeddedDocument

KIND = "rapid-document"
VERSION = "1"
# Stands for the checksum while it is computed: the header is written before what it covers.
UNKNOWN_CHECKSUM = "0" * 64
DTYPE_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
}


@dataclass(frozen=True, slots=True)
class SavedDocument:
    """What a file holds beside the model's identity.

    ids: the prompt up to where the question begins, n of them. states: for a layer's number its
    keys and values, [1, H, n, D] each. beyond_border: whether they were made for a text over a
    longrope model's border. embedded: chunks and vectors, None where nobody searched the text.
    """

    text: str
    ids: list[int]
    states: dict[int, tuple[Tensor, Tensor]]
    beyond_border: bool
    embedded: EmbeddedDocument | None


def write_document(path: Path, document: SavedDocument, model: Fingerprint, model_name: str) -> None:
    """Write a document under `path`; what stood there is replaced when all is written.

    Raises `SavedDocumentError` where the file cannot be written.
    """
    metadata = {
        "kind": KIND,
        "version": VERSION,
        "checksum": UNKNOWN_CHECKSUM,
        "model": model_name,
        "model_config": model.config,
        "model_dtype": model.dtype,
        "model_weights": model.weights,
        "model_quantization": model.quantization,
        "beyond_border": str(document.beyond_border),
    }
    tensors = {
        "ids": torch.tensor(document.ids, dtype=torch.int64),
        "text": torch.frombuffer(bytearray(document.text.encode()), dtype=torch.uint8),
    }
    if document.embedded is not None:
        metadata |= {"encoder": document.embedded.encoder, "chunk_tokens": str(document.embedded.chunk_tokens)}
        tensors["chunks"] = torch.from_numpy(document.embedded.borders)
        tensors["vectors"] = torch.from_numpy(document.embedded.vectors)
    for layer, (keys, values) in document.states.items():
        tensors |= {f"keys.{layer}": keys, f"values.{layer}": values}
    partial = path.parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    try:
        try:
            with partial.open("xb") as file:
                _write(file, metadata, tensors)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SavedDocumentError(
            f"the document could not be written to {str(path)!r}: {error.strerror or error}; name a file in a folder "
            "that exists, may be written to and has room"
        ) from error


def _write(file: BinaryIO, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
    # Wide types first, so that every tensor stands where its type may stand.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.itemsize
        kind = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = {**kind, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256(text)
    file.write(struct.pack("<Q", len(text)))
    file.write(text)
    for _, tensor in ordered:
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        digest.update(data)
        file.write(data)
    file.seek(8)
    file.write(text.replace(UNKNOWN_CHECKSUM.encode(), digest.hexdigest().encode(), 1))


class DocumentFile:
    """A file that is open for reading, and the checks that it must pass before it is used."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._metadata: dict[str, str] = file.metadata() or {}
        if self._metadata.get("kind") != KIND:
            raise self._refuse("it is a safetensors file of another kind; name one that save_document wrote")
        if self._metadata.get("version") != VERSION:
            raise self._refuse(
                f"its format must be version {VERSION}, and it is {self._metadata.get('version')!r}; save the document "
                "again with this version of rapid_core"
            )

    def check_fits(self, model: Fingerprint, model_name: str, window: int) -> None:
        """Raise `SavedDocumentError` unless the file was made by this model and fits its window."""
        ours, theirs = repr(model_name), repr(self._metadata.get("model"))
        if self._metadata.get("model_config") != model.config:
            raise self._refuse(f"it was made by another model, {theirs}, and this one is {ours}; load that model")
        if (dtype := self._metadata.get("model_dtype")) != model.dtype:
            raise self._refuse(
                f"it was made in {dtype}, and {ours} runs in {model.dtype}; load the model with dtype={dtype!r}"
            )
        if (quantization := self._metadata.get("model_quantization")) != model.quantization:
            raise self._refuse(
                f"it was made with weights quantised as {quantization!r}, and those of {ours} are "
                f"{model.quantization!r}; load the model with the same quantization"
            )
        if self._metadata.get("model_weights") != model.weights:
            raise self._refuse(
                f"it was made by {theirs}, which has other weights than {ours}; load the model that made it, or save "
                "the document again with this one"
            )
        tokens = math.prod(self._file.get_slice("ids").get_shape())
        if tokens >= window:
            raise self._refuse(
                f"it must be shorter than the target's window of {window:,} tokens, and it has {tokens:,}; load the "
                "model with a longer window"
            )

    def check_whole(self) -> None:
        """Raise `SavedDocumentError` unless the bytes are those that were written."""
        checksum = self._metadata.get("checksum", "")
        with self._path.open("rb") as file:
            header = file.read(*struct.unpack("<Q", file.read(8)))
            digest = hashlib.sha256(header.replace(checksum.encode(), UNKNOWN_CHECKSUM.encode(), 1))
            found = hashlib.file_digest(file, lambda: digest).hexdigest()
        if found != checksum:
            raise self._refuse(
                f"its checksum must be {checksum!r}, and it is {found!r}: the file is damaged; save the document again"
            )

    @property
    def text(self) -> str:
        """The document."""
        return bytes(self._file.get_tensor("text").numpy()).decode()

    @property
    def ids(self) -> list[int]:
        """The prompt up to where the question begins."""
        ids: list[int] = self._file.get_tensor("ids").tolist()
        return ids

    @property
    def beyond_border(self) -> bool:
        """Whether the keys were made for a text over a longrope model's border."""
        return self._metadata["beyond_border"] == "True"

    @property
    def embedded(self) -> EmbeddedDocument | None:
        """The document's chunks and vectors; None where nobody had searched it."""
        if "encoder" not in self._metadata:
            return None
        borders, vectors = (self._file.get_tensor(name).clone().numpy() for name in ("chunks", "vectors"))
        return EmbeddedDocument(self._metadata["encoder"], int(self._metadata["chunk_tokens"]), borders, vectors)

    def states(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each layer's number, keys and values, one layer after the other: they need not fit into memory twice."""
        names = [name for name in self._file.offset_keys() if name.startswith("keys.")]
        for layer in (int(name.removeprefix("keys.")) for name in names):
            yield layer, self._file.get_tensor(f"keys.{layer}"), self._file.get_tensor(f"values.{layer}")

    def _refuse(self, reason: str) -> SavedDocumentError:
        return SavedDocumentError(f"{str(self._path)!r} cannot be loaded: {reason}")


@contextmanager
def open_document(path: Path) -> Iterator[DocumentFile]:
    """Open a saved document; raises `SavedDocumentError` with the reason where it is none."""
    if not path.is_file():
        raise SavedDocumentError(f"a saved document must be a file, and {str(path)!r} is none; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            yield DocumentFile(path, file)
    except SafetensorError as error:
        raise SavedDocumentError(
            f"{str(path)!r} cannot be loaded: it is no safetensors file, or was cut short ({error}); name a file that "
            "save_document wrote whole"
        ) from error
    except OSError as error:
        raise SavedDocumentError(
            f"{str(path)!r} cannot be loaded: {error.strerror or error}; check its permissions and the disk"
        ) from error
