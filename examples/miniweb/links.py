"""A link of the small web, whatever image is behind it, and the names of its hosts."""

from __future__ import annotations

from dataclasses import dataclass

TRUSTED = "museum.miniweb.test"
HOSTS = tuple(
    f"{name}.miniweb.test"
    for name in ("gallery", "shop", "blog", "forum", "school", "craft", "archive")
)
CDN = "cdn.miniweb.test"  # images of other hosts' pages, and where redirects lead
ROBOTS_HOST = "archive.miniweb.test"  # its robots.txt disallows /private/


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One pair of the web: the host and path of an image, and its caption on the page."""

    kind: str
    host: str
    path: str
    caption: str
    true_caption: str
    right: bool  # the caption describes the image
    language: str = "en"
    original: str | None = None  # URL of the image that a near duplicate repeats

    @property
    def url(self) -> str:
        """Absolute, without a port."""
        return f"http://{self.host}{self.path}"


def hosts_of(number: int) -> tuple[str, ...]:
    """The names of `number` hosts that show images."""
    more = [f"site{count}.miniweb.test" for count in range(len(HOSTS) + 1, number + 1)]
    return (*HOSTS[:number], *more)
