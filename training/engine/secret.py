"""What a secret that all ranks were started with says: that a rank wrote this.

Without a secret (empty) anybody can say it, and a signature is no more than a checksum.
"""

import hashlib
import hmac


def sign(secret: bytes, *parts: str | bytes) -> bytes:
    """What only who has the secret can say of these parts: their HMAC-SHA-256, 32 bytes.

    >>> sign(b"a", "ab", "c") == sign(b"a", "a", "bc")
    False
    """
    told = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        told.update(len(data).to_bytes(8, "little") + data)
    return told.digest()
