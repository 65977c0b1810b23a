"""A web page's HTML as its images: address, caption, anchor text, and what the page says about
itself.

Parsed by Lexbor as a browser without scripts would, so that the images of <noscript> are elements.
No network.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urljoin

from charset_normalizer import from_bytes
from selectolax.lexbor import LexborHTMLParser, LexborNode

from clipmill.pipeline.archives.urls import SPACE, resolve
from clipmill.pipeline.archives.wat import LICENSES, RSL

Attributes = Mapping[str, str | None]
IMAGES = "img, amp-img"  # AMP has its own, which a script makes to images
META_NAMES = ("name", "http-equiv", "property")  # where sites write the name of a signal
# Where an image's address may be, the first that is no placeholder: OBELICS' order, with the lazy
# srcsets behind srcset
ADDRESSES = (
    "src", "data-src", "data-src-fg", "data-scroll-image", "srcset", "data-srcset",
    "data-lazy-srcset",
    "data-lateloadsrc", "data-img-src", "data-original", "data-gt-lazy-src", "data-lazy",
    "data-lazy-src", "src2",
)  # fmt: skip
# Attributes of an image that are no address of one that is loaded late
NO_LATE = frozenset((
    "src", "srcset", "sizes", "alt", "title", "class", "id", "style", "width", "height", "border",
    "align", "loading", "decoding", "fetchpriority", "itemprop",
))  # fmt: skip
# Names of images that stand in for others, without their endings
PLACEHOLDERS = {
    "1px", "1x1", "ajax-loader", "blank", "clear", "clearpixel", "dot", "dummy", "empty", "gray",
    "grey", "lazy",
    "lazyload", "lazy-load", "loader", "loading", "pixel", "placeholder", "preloader", "shim",
    "spacer", "spinner",
    "trans", "transparent", "transparent-pixel", "transp",
}  # fmt: skip
# Other words and the sizes in such names
FILLERS = re.compile(
    r"image|img|picture|photo|icon|bg|background|default|small|large|white|black|\d+(?:x\d+)?"
)
# An address in an attribute of any other name, as each program of lazy loading has its own
OTHER_NAME = re.compile(r"data-.|.*(?:src|lazy|original)")
OTHER_ADDRESS = re.compile(r"(?i)\S*/\S*\.(?:jpe?g|png|webp|gif|avif)(?:[?#]\S*)?")
STAND_IN = re.compile(r"(?i)(?:\A|/)([^/?#]*)\.(?:gif|png|svg|webp|jpe?g)(?:[?#]|\Z)")
SHOWABLE = (
    "",
    "image/jpeg",
    "image/jpg",
    "image/png",
    "image/webp",
    "image/gif",
)  # types of a <source> to prefer
WHITE = "\t\n\f\r "
DIGITS = re.compile(r"[\t\n\f\r ]*\+?([0-9]+)")
TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)")
QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
ATTRIBUTE_GAP = re.compile(r"[\s/]+")
# Elements that need no closing tag: an unclosed one does not add to the depth
LOOSE = {
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
    "p", "li", "dd", "dt", "td", "th", "tr", "tbody", "thead", "tfoot", "option", "optgroup",
    "rt", "rp", "path",
    "circle", "rect", "line", "use", "polygon",
}  # fmt: skip
FARTHEST = 100  # elements around an image in which its link and its figure are looked for
MANY_TAGS = 20_000  # a page of 100 KB has some 3,000
DEEPEST = 5_000  # the parser takes time with the square of the depth: 0.1 to 0.2 s for this one
MANY_ATTRIBUTES = 5_000  # of one tag: and with the square of their number, 0.1 s for this one
LONG_TAG = 1 << 14  # characters from where on attributes are counted
PRESCAN = 8192  # bytes in which a <meta> may name the charset
GUESSED = 1 << 16  # bytes that a charset is guessed from
# Python's names of the encodings that a page may have, where they are not what browsers take them
# for
STANDARD = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949", "big5": "big5hkscs", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874",
}  # fmt: skip
# What browsers know and Python does not (WHATWG Encoding, 4.2): forms of labels, and labels.
LABEL_FORMS = (
    (re.compile(r"\A(?:x-)+"), ""),
    (re.compile(r"\A(?:windows|dos)-(?=\d)"), "cp"),
    (re.compile(r"\Aiso-?8859-?(\d+)(?:-[ei])?\Z"), r"iso8859-\1"),
)
LABELS = {
    "koi": "koi8-r", "koi8": "koi8-r", "koi8-ru": "koi8-u", "mac": "mac-roman",
    "csmacintosh": "mac-roman", "mac-ukrainian": "mac-cyrillic", "latin-9": "iso8859-15",
    "csisolatin9": "iso8859-15", "sun_eu_greek": "iso8859-7", "visual": "iso8859-8",
    "logical": "iso8859-8", "csiso88598e": "iso8859-8", "csiso88598i": "iso8859-8",
    "csiso88596e": "iso8859-6", "csiso88596i": "iso8859-6", "gb_2312": "gb18030",
    "gb_2312-80": "gb18030", "csgb2312": "gb18030", "cn-big5": "big5", "cp31j": "cp932",
    "cseucpkdfmtjapanese": "euc_jp", "cseuckr": "cp949", "csksc56011987": "cp949",
    "iso-ir-149": "cp949", "ks_c_5601-1989": "cp949", "ksc_5601": "cp949",
    "unicode-1-1-utf-8": "utf-8", "unicode11utf8": "utf-8", "unicode20utf8": "utf-8",
}  # fmt: skip
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
)
CHARSETS = {
    "utf-8", "gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949", "cp866", "koi8-r",
    "koi8-u",
    "mac-roman", "mac-cyrillic", "cp874", "utf-16", "utf-16-le", "utf-16-be", "iso8859-2",
    "iso8859-3", "iso8859-4",
    "iso8859-5", "iso8859-6", "iso8859-7", "iso8859-8", "iso8859-10", "iso8859-13", "iso8859-14",
    "iso8859-15",
    "iso8859-16", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257",
    "cp1258",
}  # fmt: skip


class Image(NamedTuple):
    """An image of a page. `url` is absolute, or "" with the reason why there is none."""

    url: str
    reason: str | None
    caption: str | None  # alt as it is; a figure's caption where alt is missing or empty
    title: str | None
    anchor: str | None  # text of the link around it
    link: str  # the address as the page has it


class HtmlPage(NamedTuple):
    """The content of a page's HTML; the images are in document order."""

    images: list[Image]
    language: str | None
    metas: list[tuple[str, str]]
    license: str | None
    terms: list[str]  # links to licences of RSL


# --- text -----------------------------------------------------------------------------------------


def text_of(body: bytes, charset: str | None) -> str:
    """A page's text: by its byte order mark, else the HTTP header's charset, else its <meta>, else
    by its bytes.
    """
    for mark, name in MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    if named := _known(charset) or _declared(body):
        return body.decode(named, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode(_guessed(body), "replace")


def _known(label: str | None) -> str | None:
    """Python's name of an encoding that pages may have."""
    label = (label or "").strip(WHITE + "\"'").lower()
    try:
        try:
            name = codecs.lookup(label).name
        except LookupError:
            for form, usual in LABEL_FORMS:
                label = form.sub(usual, label)
            name = codecs.lookup(LABELS.get(label, label)).name
    except (LookupError, ValueError):
        return None
    name = STANDARD.get(name, name)
    return name if name in CHARSETS else None


def _declared(body: bytes) -> str | None:
    """The charset that a <meta> names."""
    head = body[:PRESCAN]
    if b"charset" not in head.lower():
        return None
    for meta in LexborHTMLParser(head.decode("latin-1")).css("meta"):
        attributes = meta.attributes
        label = attributes.get("charset")
        if not label and (attributes.get("http-equiv") or "").lower() == "content-type":
            label = charset_in(attributes.get("content") or "")
        if name := _known(label):
            return "utf-8" if name.startswith("utf-16") else name  # it could not have been read
    return None


def media_type(values: Iterable[str]) -> tuple[str, str | None]:
    """The type and the charset that headers name, several or one with commas: as in browsers the
    last type, and of equal ones the last charset."""
    kind, charset = "", None
    for value in ",".join(values).split(","):
        name = value.partition(";")[0].strip().lower()
        if "/" in name and name != "*/*":
            charset = charset_in(value) or (charset if name == kind else None)
            kind = name
    return kind, charset


def charset_in(content_type: str) -> str | None:
    """The charset parameter of a media type."""
    for part in content_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'")
    return None


def _guessed(body: bytes) -> str:
    """The likely encoding of a page that names none. ASCII lines fit every encoding, so only the
    other lines are examined.
    """
    other_lines = b"\n".join(
        line for line in body.replace(b"<", b"\n<").splitlines() if not line.isascii()
    )
    best = from_bytes(other_lines[:GUESSED]).best()
    return (_known(best.encoding) if best else None) or "cp1252"


# --- addresses ------------------------------------------------------------------------------------


def candidates(srcset: str) -> list[tuple[str, float, float]]:
    """The images of a srcset as (url, width, density), as the HTML standard splits it. Width
    is 0 and density 1 where not given.

    A URL ends at white space and may contain commas, but not at its end. Invalid candidates are
    left out.
    """
    images: list[tuple[str, float, float]] = []
    position = 0
    while position < len(srcset):
        while position < len(srcset) and srcset[position] in WHITE + ",":
            position += 1
        start = position
        while position < len(srcset) and srcset[position] not in WHITE:
            position += 1
        url, descriptors = srcset[start:position], ""
        if url.endswith(","):
            url = url.rstrip(",")
        else:
            start, depth = position, 0
            while position < len(srcset) and (depth or srcset[position] != ","):
                depth = max(0, depth + {"(": 1, ")": -1}.get(srcset[position], 0))
                position += 1
            descriptors = srcset[start:position]
        sizes = _sizes(descriptors)
        if url and sizes:
            images.append((url, *sizes))
    return images


def _sizes(descriptors: str) -> tuple[float, float] | None:
    width = density = 0.0
    for word in descriptors.split():
        try:
            number = float(word[:-1])
        except ValueError:
            return None
        if word[-1] == "w" and number > 0 and not width:
            width = number
        elif word[-1] == "x" and number >= 0 and not density:
            density = number
        elif word[-1] != "h":  # a height, which goes with a width, decides nothing
            return None
    return width, density or 1.0


def largest(srcset: str) -> str:
    """The widest image of a srcset, else the densest; "" where all are placeholders."""
    usable = [one for one in candidates(srcset) if not is_placeholder(one[0])]
    return max(usable, key=lambda one: one[1:])[0] if usable else ""


def is_placeholder(url: str) -> bool:
    """True for what a page shows until the image is loaded: data: URLs, blank.gif and the like,
    an unfilled template.
    """
    url = url.strip(SPACE)
    if url[:5].lower() == "data:" or "{" in url:
        return True
    name = STAND_IN.search(url)
    return name is not None and name[1].lower().replace("_", "-") in PLACEHOLDERS


def _may_stand_in(url: str) -> bool:
    """True where the name of an image has no words but those of placeholders: it is one where the
    page has another address of the image."""
    name = STAND_IN.search(url)
    words = re.split(r"[-_. ]+", name[1].lower()) if name else []
    return not PLACEHOLDERS.isdisjoint(words) and all(
        word in PLACEHOLDERS or FILLERS.fullmatch(word) for word in words
    )


def _stand_ins(images: Sequence[Attributes]) -> set[str]:
    """The values of `src` that stand for several images of a page: placeholders whose names say
    nothing. Browsers read srcset at once: it is beside no placeholder."""
    sources = Counter((attributes.get("src") or "").strip(SPACE) for attributes in images)
    others: dict[str, set[tuple[str | None, str | None]]] = {}
    for attributes in images:
        source = (attributes.get("src") or "").strip(SPACE)
        if sources[source] > 1 and not is_placeholder(source):
            late = {name: text for name, text in attributes.items() if name not in NO_LATE}
            if address := late and _chosen(late, None)[0]:
                others.setdefault(source, set()).add((address, attributes.get("alt")))
    return {
        source
        for source, pairs in others.items()
        if all(len(set(column)) > 1 for column in zip(*pairs, strict=True))
    }


def _chosen(
    attributes: Attributes,
    picture_source: Callable[[], str | None] | None,
    stand_ins: Container[str] = (),
) -> tuple[str | None, bool]:
    """The final address of an image after lazy loading, and True where it is that of `src`. None
    where the image has no address.
    """
    stand_in: str | None = "" if "src" in attributes else None
    doubtful = ""
    for name in ADDRESSES:
        value = (attributes.get(name) or "").strip(SPACE)
        if name.endswith("srcset"):
            value = largest(value) or next((one[0] for one in candidates(value)), "")
        elif name != "src" and "." not in value and "/" not in value:
            continue  # data-lazy="true"
        if value and not is_placeholder(value):
            if name != "src" or not (value in stand_ins or _may_stand_in(value)):
                return value, name == "src"
            doubtful = value
        stand_in = stand_in or value or stand_in
    if picture_source and (from_source := picture_source()):
        return from_source, False
    for name, text in attributes.items():
        value = (text or "").strip(SPACE)
        if OTHER_NAME.match(name) and OTHER_ADDRESS.fullmatch(value) and not is_placeholder(value):
            return value, False
    return doubtful or stand_in, True


def _source(element: LexborNode) -> str:
    """The image of a <picture> element's first <source> of a usual type, else of its first."""
    sources = [source.attributes for source in element.css("source")]
    sources.sort(
        key=lambda attributes: (attributes.get("type") or "").strip().lower() not in SHOWABLE
    )
    for attributes in sources:
        for name in ("srcset", "data-srcset", "data-lazy-srcset"):
            if url := largest(attributes.get(name) or ""):
                return url
    return ""


def _is_pixel(attributes: Attributes) -> bool:
    """Width and height are given, and neither is above 1: a beacon. A larger box does not
    tell the size of the file.
    """
    sizes = [DIGITS.match(attributes.get(name) or "") for name in ("width", "height")]
    return all(size and int(size[1]) <= 1 for size in sizes)


# --- the page -------------------------------------------------------------------------------------


def page_of(text: str, url: str) -> HtmlPage:
    """The images, language, metas and licence of a page.

    ValueError where elements are nested deeper than DEEPEST, or a tag has more than MANY_ATTRIBUTES
    attributes.
    """
    pieces = text.split("<")
    if len(pieces) > MANY_TAGS:
        _check_depth(text)
    if len(max(pieces, key=len)) > LONG_TAG:
        _check_attributes(pieces)
    tree = LexborHTMLParser(text)
    base = url
    if named := tree.css_first("base[href]"):  # the first one counts
        try:
            base = urljoin(url, (named.attributes["href"] or "").strip(SPACE))
        except ValueError:
            base = url
    root = tree.root
    language = (root.attributes.get("lang") or "") if root else ""
    metas = [
        ((meta.attributes.get(key) or "").strip().lower(), meta.attributes.get("content") or "")
        for key in META_NAMES
        for meta in tree.css(f"meta[{key}]")
    ]
    licensed = "license" in text or "publicdomain" in text
    return HtmlPage(
        list(_images(tree, base)),
        language.strip().lower().replace("_", "-").partition("-")[0] or None,
        metas,
        *(_license(tree, base) if licensed else (None, [])),
    )


def _images(tree: LexborHTMLParser, base: str) -> Iterator[Image]:
    """In document order. A <noscript>'s copy of an image that the page has outside too ends as
    noscript_copy.
    """
    images: list[tuple[Image, bool]] = []
    # One element may contain thousands of images, so it is read once.
    texts: dict[tuple[str, int], str | None] = {}

    def once(read: Callable[[LexborNode], str | None], node: LexborNode) -> str | None:
        key = (read.__name__, node.mem_id)
        if key not in texts:
            texts[key] = read(node)
        return texts[key]

    nodes = [(node, node.attributes) for node in tree.css(IMAGES)]
    stand_ins = _stand_ins([attributes for _, attributes in nodes])
    for node, attributes in nodes:
        around = _around(node)
        parent = node.parent
        picture = parent if parent is not None and parent.tag == "picture" else None
        from_source = partial(once, _source, picture) if picture is not None else None
        address, plain = _chosen(attributes, from_source, stand_ins)
        if address is None:
            continue
        target, reason = "", None
        if plain and address.strip(SPACE)[:5].lower() != "data:" and is_placeholder(address):
            reason = "placeholder"
        elif plain and _is_pixel(attributes):
            reason = "tracking_pixel"
        else:
            try:
                target = resolve(base, address)
            except ValueError as error:
                reason = str(error)
        caption = "" if "alt" in attributes and attributes["alt"] is None else attributes.get("alt")
        if not (caption or "").strip() and (figure := around.get("figure")):
            caption = once(_caption_of, figure) or caption
        anchor = once(_spaced, around["a"]) if "a" in around else None
        title = (attributes.get("title") or "").strip() or None
        images.append(
            (Image(target, reason, caption, title, anchor or None, address), "noscript" in around)
        )
    shown = {image.url for image, copy in images if not copy and (image.caption or "").strip()}
    for image, copy in images:
        yield (
            image._replace(url="", reason="noscript_copy")
            if copy and image.url in shown and image.url
            else image
        )


def _around(node: LexborNode) -> dict[str, LexborNode]:
    """The nearest link, figure and noscript around an image."""
    nearest: dict[str, LexborNode] = {}
    above = node.parent
    for _ in range(FARTHEST):
        if above is None:
            break
        tag = above.tag
        if (
            tag in ("a", "figure", "noscript")
            and tag not in nearest
            and (tag != "a" or "href" in above.attributes)
        ):
            nearest[tag] = above
        above = above.parent
    return nearest


def _caption_of(figure: LexborNode) -> str | None:
    """The caption of a figure with one image. With several it is unclear which one it describes."""
    images = figure.css(IMAGES)
    named = figure.css_first("figcaption")
    alone = len(images) - sum(len(block.css(IMAGES)) for block in figure.css("noscript")) <= 1
    return _spaced(named) if named is not None and alone else None


def _spaced(node: LexborNode) -> str:
    """An element's text with its white space collapsed."""
    return " ".join(node.text().split())


def _license(tree: LexborHTMLParser, base: str) -> tuple[str | None, list[str]]:
    """The first link with rel=license, else the first to Creative Commons; and those of RSL. Links
    of the head come first.
    """
    links: list[Attributes] = []
    for selector in ("link[href]", "a[href]", "area[href]"):
        links += [node.attributes for node in tree.css(selector)]
    named = [link for link in links if "license" in (link.get("rel") or "").lower().split()]
    commons = [link for link in links if any(part in (link["href"] or "") for part in LICENSES)]
    terms = [link["href"] or "" for link in named if RSL in (link.get("type") or "").lower()]
    for link in (*named, *commons):
        try:
            return resolve(base, link["href"] or ""), terms
        except ValueError:
            continue
    return None, terms


def _check_depth(text: str) -> None:
    """ValueError where elements are nested deeper than DEEPEST."""
    opened: Counter[str] = Counter()
    depth = 0
    for closing, name in TAG.findall(text.lower()):
        if name in LOOSE:
            continue
        if not closing:
            opened[name] += 1
            depth += 1
        elif opened[name]:
            opened[name] -= 1
            depth -= 1
        if depth > DEEPEST:
            raise ValueError(f"a page nested {DEEPEST} deep")


def _check_attributes(pieces: Iterable[str]) -> None:
    """ValueError where a tag has more than MANY_ATTRIBUTES. `pieces`: a page split at each `<`."""
    for piece in pieces:
        if len(piece) > LONG_TAG and piece[0].isascii() and piece[0].isalpha():
            names = ATTRIBUTE_GAP.split(QUOTED.sub("", piece).partition(">")[0])
            if len(names) > MANY_ATTRIBUTES:
                raise ValueError(f"a tag with more than {MANY_ATTRIBUTES} attributes")
