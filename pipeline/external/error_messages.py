"""Error messages of img2dataset as reasons."""

from __future__ import annotations

import re

# What img2dataset and urllib write into error_message, and its reason; the first match counts.
MESSAGES = (
    (r"HTTP Error 429", "http_429"),
    (r"HTTP Error 5\d\d", "http_5xx"),
    (r"HTTP Error 4\d\d", "http_4xx"),
    (r"HTTP Error 3\d\d", "redirects"),
    (r"X-Robots-Tag", "optout_header"),
    (
        r"Name or service not known|getaddrinfo|name resolution|nodename|No address associated",
        "dns",
    ),
    (r"timed out", "deadline"),
    (r"CERTIFICATE|SSL|TLS", "tls"),
    (r"refused|unreachable|No route to host", "connect"),
    (r"reset by peer|closed connection|Remote end closed|RemoteDisconnected", "reset"),
    (r"IncompleteRead", "truncated"),
    (r"hash mismatch", "hash_mismatch"),
    (r"unknown url type|redirection to url .* is not allowed", "scheme"),
    (r"no host given|nonnumeric port|control characters|'ascii' codec", "bad_url"),
    (r"Invalid (IPv6 )?URL|label (empty|too long)", "bad_url"),
    (r"image too small", "too_small"),
    (r"aspect ratio too large", "aspect"),
    (r"image area too large", "too_many_pixels"),
    (r"buf\.empty\(\)", "empty"),  # what OpenCV says to 0 bytes
)


def reason_of(status: str, message: str) -> str:
    """The reason of a row that img2dataset lists as failed_to_download or failed_to_resize with
    this error_message."""
    unknown = "decode_error" if status == "failed_to_resize" else "http_other"
    return next((reason for words, reason in MESSAGES if re.search(words, message)), unknown)
