"""Keys and streams, each bound to its purpose and to the context it belongs to."""

from __future__ import annotations

from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from feddbp_common.secure_sums.digests import DOMAIN, digest
from feddbp_common.secure_sums.fixed_point import Words

_KEY_BYTES: Final = 32
_STREAM_NONCE: Final = bytes(16)
"""Every key expands into one stream only, so the nonce is fixed."""


def derive_key(secret: bytes, purpose: str, *context: bytes | int | str) -> bytes:
    """A key of 32 bytes for one purpose."""
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=DOMAIN, info=digest(purpose, *context)).derive(secret)


class KeyStream:
    """The bytes into which a key expands, by ChaCha20."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(ChaCha20(key, _STREAM_NONCE), mode=None).encryptor()

    def read(self, size: int) -> bytes:
        return self._encryptor.update(bytes(size))

    def words(self, count: int) -> Words:
        """A mask: numbers of 64 bits."""
        return np.frombuffer(self.read(8 * count), dtype="<u8")

    def below(self, bound: int) -> int:
        """A uniform number below a bound, by rejection."""
        size = (bound.bit_length() + 7) // 8
        excess = 8 * size - bound.bit_length()
        while (drawn := int.from_bytes(self.read(size), "big") >> excess) >= bound:
            pass
        return drawn
