"""What a web of drawn images holds: each image, the words beside it, and what is wrong with it.
Pure and seeded.

The kinds of a pair, and how many there are, are fixed by the settings: nothing is drawn by chance
but which is which.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clipmill.examples.miniweb.links import CDN, ROBOTS_HOST, TRUSTED, Link, hosts_of
from clipmill.examples.miniweb.scenes import COLOURS, Scene, scene
from clipmill.examples.miniweb.settings import Miniweb
from clipmill.examples.miniweb.shapes import SHAPES

FAULTS = (
    "dead_link", "error500", "flaky503", "redirect", "redirect_loop", "truncated", "html",
    "optout_header",
    "optout_page", "robots_txt",
)  # fmt: skip
LANGUAGES = ("de", "fr", "es", "pl")
# Shares of the right pairs: tiny, in another language; of the wrong ones: words that say nothing,
# words in the image.
THUMBNAILS, FOREIGN, GENERIC_SHARE, PAINTED_SHARE = 0.05, 0.08, 0.2, 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Link):
    """A link to a drawn image."""

    scene: Scene
    variant: int = 0  # 0: the image itself; above: a near duplicate of it
    painted: str | None = None  # words in the image


# --- plan -----------------------------------------------------------------------------------------


def plan(settings: Miniweb) -> list[Item]:
    """The pairs of the crawl, in no order."""
    faults = round(settings.faults * settings.pairs)
    others = settings.pairs - faults
    copies = min(round(settings.near_duplicates * others), max(others - 1, 0))
    wrong_copies = round(settings.noise * copies)
    wrong = min(round(settings.noise * others) - wrong_copies, others - copies)
    right = others - copies - wrong
    foreign, thumbnails = round(FOREIGN * right), round(THUMBNAILS * right)
    generics, painted = round(GENERIC_SHARE * wrong), round(PAINTED_SHARE * wrong)
    fault_kinds, hosts = settings.fault_kinds or FAULTS, hosts_of(settings.hosts)
    kinds = [fault_kinds[i % len(fault_kinds)] for i in range(faults)]
    kinds += (
        ["language"] * foreign
        + ["thumbnail"] * thumbnails
        + ["clean"] * (right - foreign - thumbnails)
    )
    kinds += (
        ["generic"] * generics
        + ["text_in_picture"] * painted
        + ["noisy"] * (wrong - generics - painted)
    )
    random.Random(f"kinds/{settings.seed}").shuffle(kinds)
    items = [
        _item(settings.seed, "crawl", number, kind, hosts) for number, kind in enumerate(kinds)
    ]
    items = _with_wrong_captions(items, random.Random(f"wrong/{settings.seed}"))
    return items + _near_duplicates(items, copies, wrong_copies, settings.seed, hosts)


def trusted(settings: Miniweb) -> list[Item]:
    """The pairs of the trusted host: right captions, no ills."""
    hosts = hosts_of(settings.hosts)
    items = []
    for number in range(settings.trusted_pairs):
        items.append(_item(settings.seed, "trusted", number, "clean", hosts))
    return [replace(item, host=TRUSTED) for item in items]


def _item(seed: int, stream: str, number: int, kind: str, hosts: Sequence[str]) -> Item:
    rng = random.Random(f"item/{seed}/{stream}/{number}")
    shown = scene(seed, stream, number, thumbnail=kind == "thumbnail")
    if kind == "text_in_picture":  # words need room
        shown = replace(shown, width=96, height=96)
    language = rng.choice(LANGUAGES) if kind == "language" else "en"
    text = caption(shown, rng) if language == "en" else translated(shown, language, rng)
    token = hashlib.sha256(f"{seed}/{stream}/{number}".encode()).hexdigest()[:16]
    host, folder = rng.choice(hosts) if rng.random() < 0.85 else CDN, "img"
    if kind == "robots_txt":
        host, folder = ROBOTS_HOST, "private"
    elif kind == "redirect":
        host, folder = rng.choice(hosts), "go"
    path = f"/{folder}/{token[:2]}/{token}.jpg"
    return Item(
        kind=kind,
        scene=shown,
        host=host,
        path=path,
        caption=text,
        true_caption=text,
        right=True,
        language=language,
    )


def _with_wrong_captions(items: Sequence[Item], rng: random.Random) -> list[Item]:
    """Noisy and painted pairs get the caption of an image of another class, generic ones words
    that say nothing.
    """
    done = []
    for item in items:
        if item.kind == "generic":
            item = replace(item, caption=generic(rng), right=False)
        elif item.kind in ("noisy", "text_in_picture"):
            other = _another(items, item, rng)
            item = replace(
                item,
                caption=other,
                right=False,
                painted=other if item.kind == "text_in_picture" else None,
            )
        done.append(item)
    return done


def _another(items: Sequence[Item], item: Item, rng: random.Random) -> str:
    """The English caption of an image of another class; of an invented one where 50 draws find
    none.
    """
    for _ in range(50):
        other = rng.choice(items)
        if other.language == "en" and other.scene.label != item.scene.label:
            return other.true_caption
    colours = list(COLOURS)
    colour = colours[(colours.index(item.scene.colour) + 1) % len(colours)]
    return caption(replace(item.scene, colour=colour), rng)


def _near_duplicates(
    items: Sequence[Item], copies: int, wrong_copies: int, seed: int, hosts: Sequence[str]
) -> list[Item]:
    """Pictures of the web again, a little different, elsewhere, with the same caption."""
    rng = random.Random(f"copies/{seed}")
    right = [item for item in items if item.kind == "clean"]
    wrong = [item for item in items if item.kind in ("noisy", "generic")]
    done = []
    for number in range(copies):
        first, second = (wrong, right) if number < wrong_copies else (right, wrong)
        of = rng.choice(first or second or items)  # a web of a few pairs may hold neither
        token = hashlib.sha256(f"{seed}/copy/{number}".encode()).hexdigest()[:16]
        done.append(
            replace(
                of, kind="near_duplicate", host=rng.choice((*hosts, CDN)),
                path=f"/copies/{token[:2]}/{token}.jpg",
                variant=number + 1, original=of.url,
            )
        )  # fmt: skip
    return done


# --- captions -------------------------------------------------------------------------------------

PLACES = {
    "plain": ("on the wall", "on a plain background", "on paper"),
    "faded": ("in soft light", "in the evening light"),
    "cloudy": ("on a blurred background", "in the garden"),
    "striped": ("on a striped background", "on striped fabric"),
    "dotted": ("on a dotted background", "on dotted wallpaper"),
    "checkered": ("on a checkered background", "on a checkered tablecloth"),
    "messy": ("on a messy desk", "among other things"),
}
TEMPLATES = (
    "a photo of {a}", "a photo of {a}", "{a}", "{a}", "picture of {a}", "close-up of {a}",
    "old photo of {a}",
    "here you see {a}", "{bare}, handmade", "{bare} for sale", "my {bare}", "our new {bare}",
    "{bare} from my collection",
    "{a}, seen at the market", "{bare} (photo)", "a good picture of {a}", "drawing with {a}",
)  # fmt: skip
GENERIC = (
    "IMG_{n}.jpg", "DSC0{n}", "image {n}", "logo", "photo", "click to enlarge", "thumbnail",
    "untitled", "banner {n}",
    "buy now - free shipping", "product image", "open picture in a new window", "loading",
    "screenshot {n}.png",
    "share on social media", "the picture could not be found",
)  # fmt: skip


def caption(scene: Scene, rng: random.Random) -> str:
    """An alternative text in English, as people write it, that describes the scene."""
    words = [scene.colour]
    if scene.texture != "plain" and rng.random() < 0.35:
        words.insert(rng.randint(0, 1), scene.texture)
    if scene.count == 1 and not 0.395 <= scene.size <= 0.445 and rng.random() < 0.3:
        words.insert(0, "big" if scene.size > 0.42 else "small")
    bare = " ".join([*words, _noun(scene)])
    text = rng.choice(TEMPLATES).format(
        a=_counted(scene, bare, rng.choice(("two", "two", "a pair of"))), bare=bare
    )
    if rng.random() < 0.35 and not text.endswith((")", "market", "sale", "handmade")):
        text += f" {rng.choice(PLACES[scene.background])}"
    return text[0].upper() + text[1:] if rng.random() < 0.2 else text


def full_caption(scene: Scene) -> str:
    """A caption that names number, texture, colour, shape and background."""
    texture = "" if scene.texture == "plain" else f"{scene.texture} "
    bare = f"{texture}{scene.colour} {_noun(scene)}"
    return f"a photo of {_counted(scene, bare, 'two')} {PLACES[scene.background][0]}"


def _noun(scene: Scene) -> str:
    return scene.shape if scene.count == 1 or scene.shape == "fish" else f"{scene.shape}s"


def _counted(scene: Scene, bare: str, two: str) -> str:
    return f"{('an' if bare[0] in 'aeiou' else 'a', two, 'three')[scene.count - 1]} {bare}"


def generic(rng: random.Random) -> str:
    """An alternative text that describes no image."""
    return rng.choice(GENERIC).format(n=rng.randint(1000, 9999))


# Nouns as "singular plural gender"; colours in the forms of FORMS; in the order of SHAPES and
# COLOURS.
# p, M, F: plural of all, masculine, feminine
FORMS = {"de": "mfnp", "pl": "mfnp", "fr": "mfMF", "es": "mfMF"}
NOUNS = {
    "de": "Auto Autos n,Haus Häuser n,Boot Boote n,Blume Blumen f,Fisch Fische m,Tasse Tassen f,"
    "Stern Sterne m,"
    "Herz Herzen n",
    "fr": "voiture voitures f,maison maisons f,bateau bateaux m,fleur fleurs f,"
    "poisson poissons m,tasse tasses f,"
    "étoile étoiles f,cœur cœurs m",
    "es": "coche coches m,casa casas f,barco barcos m,flor flores f,pez peces m,taza tazas f,"
    "estrella estrellas f,"
    "corazón corazones m",
    "pl": "auto auta n,dom domy m,łódka łódki f,kwiat kwiaty m,ryba ryby f,"
    "filiżanka filiżanki f,gwiazda gwiazdy f,"
    "serce serca n",
}
ADJECTIVES = {
    "de": "roter rote rotes rote,oranger orange oranges orange,gelber gelbe gelbes gelbe,"
    "grüner grüne grünes grüne,blauer blaue blaues blaue,"
    "violetter violette violettes violette,rosa rosa rosa rosa,brauner braune braunes braune",
    "fr": "rouge rouge rouges rouges,orange orange orange orange,jaune jaune jaunes jaunes,"
    "vert verte verts vertes,bleu bleue bleus bleues,"
    "violet violette violets violettes,rose rose roses roses,marron marron marron marron",
    "es": "rojo roja rojos rojas,naranja naranja naranjas naranjas,"
    "amarillo amarilla amarillos amarillas,verde verde verdes verdes,azul azul azules azules,"
    "morado morada morados moradas,rosa rosa rosas rosas,marrón marrón marrones marrones",
    "pl": "czerwony czerwona czerwone czerwone,pomarańczowy pomarańczowa pomarańczowe pomarańczowe,"
    "żółty żółta żółte żółte,zielony zielona zielone zielone,"
    "niebieski niebieska niebieskie niebieskie,fioletowy fioletowa fioletowe fioletowe,"
    "różowy różowa różowe różowe,brązowy brązowa brązowe brązowe",
}
NUMBERS = {  # one (m f n), two (m f n), three
    "de": "ein eine ein zwei zwei zwei drei",
    "fr": "un une un deux deux deux trois",
    "es": "un una un dos dos dos tres",
    "pl": "jeden jedna jedno dwa dwie dwa trzy",
}
SENTENCES = {
    "de": (
        "{x} auf einem alten Foto",
        "Foto vom Markt: {x}, von Hand gemalt",
        "hier seht ihr {x} im Garten",
    ),
    "fr": (
        "{x} sur une vieille photo",
        "photo du marché : {x}, à vendre",
        "vous voyez ici {x} dans le jardin",
    ),
    "es": (
        "{x} en una foto antigua",
        "foto del mercado: {x}, a la venta",
        "foto de casa: {x} en el jardín",
    ),
    "pl": (
        "{x} na starym zdjęciu",
        "zdjęcie z targu: {x}, na sprzedaż",
        "w naszym ogrodzie: {x}, zdjęcie z domu",
    ),
}


def translated(scene: Scene, language: str, rng: random.Random) -> str:
    """A caption in German, French, Spanish or Polish that describes the scene rightly."""
    singular, plural, gender = NOUNS[language].split(",")[list(SHAPES).index(scene.shape)].split()
    forms = ADJECTIVES[language].split(",")[list(COLOURS).index(scene.colour)].split()
    many = "p" if "p" in FORMS[language] else gender.upper()
    colour = forms[FORMS[language].index(gender if scene.count == 1 else many)]
    number = NUMBERS[language].split()[min(3 * (scene.count - 1) + "mfn".index(gender), 6)]
    noun = singular if scene.count == 1 else plural
    words = [number, noun, colour] if language in ("fr", "es") else [number, colour, noun]
    return rng.choice(SENTENCES[language]).format(x=" ".join(words))
