"""Consent in the spellings of drafts and of real sites: each row is one host of a small web, and
one build says what became of them. Then spellings of hosts in a purge, and a refresh.

The outcome of a row was written down before it was run: the signal that says no, `unread` or
`other-crawlers` for what is stored and told, "" for consent and silence.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pytest
from PIL import Image

from clipmill.filters.optout import statements
from clipmill.manifests import disk
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.pipeline.audit import purge
from clipmill.pipeline.audit.purge import purge_rows, read_criteria
from clipmill.pipeline.crawl.parts import read_parts, write_parts
from clipmill.pipeline.pool.lease import PoolWriter
from clipmill.pipeline.pool.shard_writer import ShardWriter
from tests.support import audited, commands
from tests.support.loopback_server import serving

AGENT = "clipmill-test (+https://x.example)"
VOCAB = "draft-ietf-aipref-vocab"
ATTACH = "draft-ietf-aipref-attach"
SIGNALS = "draft-romm-aipref-contentsignals"
FIELDS = "RFC 9651"
TDM = "W3C TDMRep final report"
CANEL = "draft-canel-robots-ai-control-00"
GOOGLE = "developers.google.com: Robots meta tag and X-Robots-Tag specifications"
CLOUDFLARE = "developers.cloudflare.com: managed robots.txt"
# Its rule, "a statement that can be read in two ways is read as a no", in spellings of our own.
REVIEW = "docs/consent.md"
SPATIE = "spatie/laravel-markdown-response: docs/response-headers.md"
ALL = "User-agent: *\n"


class Row(NamedTuple):
    source: str
    where: str  # a header, or a file of the site
    text: Any  # bytes of a file that is not UTF-8
    outcome: str
    why: str = ""


CS, CU, XR, TR = "Content-Signal", "Content-Usage", "X-Robots-Tag", "TDM-Reservation"
ROBOTS, TDMREP, AI = "robots.txt", "tdmrep.json", "ai.txt"
ROWS = [
    # --- Content-Signal, in the header
    Row(SIGNALS, CS, "ai-train=no", "ai-train"),
    Row(SIGNALS, CS, "search=yes,ai-train=no", "ai-train"),
    Row(SIGNALS, CS, "search=yes, ai-input=yes, ai-train=no", "ai-train"),
    Row(REVIEW, CS, "AI-Train=No", "ai-train"),
    Row(REVIEW, CS, "ai-train=No", "ai-train"),
    Row(REVIEW, CS, "search=yes, ai-train=NO", "ai-train"),
    Row(REVIEW, CS, "search=yes; ai-train=no", "ai-train", "a parameter by RFC 9651"),
    Row(REVIEW, CS, "search=yes; ai-input=yes; ai-train=no", "ai-train", "header of a shop"),
    Row(SPATIE, CS, "ai-train=disallow, ai-input=allow, search=allow", "ai-train", "the default"),
    Row(FIELDS, CS, "ai-train=?0", "ai-train", "a boolean"),
    Row(FIELDS, CS, "search, ai-train=?0", "ai-train"),
    Row(FIELDS, CS, "ai-train=0", "ai-train", "an integer"),
    Row(FIELDS, CS, "ai-train=0.0", "ai-train", "a decimal"),
    Row(FIELDS, CS, 'ai-train="no"', "ai-train", "a string"),
    Row(FIELDS, CS, "ai-train=false", "ai-train", "a token"),
    Row(FIELDS, CS, "ai-train=False", "ai-train"),
    Row(FIELDS, CS, "ai-train=(no)", "ai-train", "a list of one"),
    Row(FIELDS, CS, "ai-train=no;since=2026", "ai-train", "with a parameter"),
    Row(FIELDS, CS, "ai-train=yes;note=x, ai-train=no", "ai-train", "the last one counts"),
    Row(REVIEW, CS, "'ai-train=no'", "ai-train", "quotes around everything"),
    Row(REVIEW, CS, '"search=yes, ai-train=no"', "ai-train", "nginx add_header"),
    Row(REVIEW, CS, '{"ai-train": "no", "search": "yes"}', "ai-train", "JSON in a header"),
    Row(REVIEW, CS, '"ai-train"="no"', "ai-train", "JSON in a header"),
    Row(REVIEW, CS, "ai-train: no", "ai-train", "a colon"),
    Row(REVIEW, CS, "search: yes; ai-train: no", "ai-train", "llms.txt style"),
    Row(REVIEW, CS, "ai-train =no", "ai-train"),
    Row(REVIEW, CS, "AI-TRAIN = NO", "ai-train"),
    Row(REVIEW, CS, "ai_train=no", "ai-train", "an underscore"),
    Row(REVIEW, CS, "search=yes ai-train=no", "ai-train", "blanks for commas"),
    Row(REVIEW, CS, "search=yes|ai-train=no", "ai-train"),
    Row(REVIEW, CS, "ai-train=no.", "ai-train"),
    Row(REVIEW, CS, "ai-train=no,", "ai-train", "a comma at the end"),
    Row(REVIEW, CS, ", ai-train=no", "ai-train"),
    Row(REVIEW, CS, "ai\u2011train=no", "ai-train", "a hyphen that does not break"),
    Row(REVIEW, CS, "ai-train=\u201cno\u201d", "ai-train", "curly quotes"),
    Row(REVIEW, CS, "ai-train=\uff4e\uff4f", "ai-train", "full-width letters"),
    Row(REVIEW, CS, "ai\uff0dtrain\uff1dno", "ai-train", "full-width punctuation"),
    Row(REVIEW, CS, "ai-training=none", "ai-train", "deny lists of scanners"),
    Row(REVIEW, CS, "training=deny", "ai-train", "deny lists of scanners"),
    Row(SIGNALS, CS, "search=yes,use=reference", "any-use"),
    Row(SIGNALS, CS, "Search=Yes,Use=Reference", "any-use"),
    Row(SIGNALS, CS, 'use="immediate"', "any-use"),
    Row(SIGNALS, CS, "use=no", "any-use"),
    Row(REVIEW, CS, "ai-train=maybe", "unread", "ship gate of a site"),
    Row(SIGNALS, CS, "ai-train=conditional", "unread"),
    Row(SIGNALS, CS, "ai-train=2", "unread"),
    Row(FIELDS, CS, "ai-train=(yes no)", "unread"),
    Row(FIELDS, CS, "ai-train", "unread", "no value"),
    Row(SIGNALS, CS, "use=some", "unread"),
    Row(REVIEW, CS, "please ask us first!", "unread"),
    Row("buildinternet/uploads#215", CS, "search=yes, ai-input=yes, ai-train=yes", ""),
    Row("pulumi/docs#18625", CS, "ai-train=yes, search=yes, ai-input=yes", ""),
    Row(SIGNALS, CS, "search=yes, ai-input=no", "", "ai-input is no training"),
    Row(SIGNALS, CS, "search=no", ""),
    Row(SIGNALS, CS, "AI-TRAIN=YES", ""),
    Row(SIGNALS, CS, 'ai-train="yes"', ""),
    Row(FIELDS, CS, "ai-train=?1", ""),
    Row(FIELDS, CS, "ai-train=1", ""),
    Row(FIELDS, CS, "ai-train=true", ""),
    Row(SPATIE, CS, "ai-train=allow, search=allow", ""),
    Row(SIGNALS, CS, "ai-train=yes,use=reference", "", "the yes outweighs the wider word"),
    Row(SIGNALS, CS, "use=full", ""),
    Row(FIELDS, CS, 'note="ai-train=no is not what we want", ai-train=yes', "", "a string"),
    Row(FIELDS, CS, "ai-train=no, ai-train=yes", "", "the last of equal keys counts"),
    Row(FIELDS, CS, "x-ai-train=no", "", "another key"),
    Row(FIELDS, CS, "ai-training-data-policy=none", "", "another key"),
    Row(FIELDS, CS, "noai-train=0", "", "another key"),
    Row(REVIEW, CS, "SEARCH = YES", ""),
    Row("koala73/worldmonitor#3307", CS, "search=yes, ai-input=yes", ""),
    Row(REVIEW, CS, "search=yes; ai-input=no", "", "a semicolon, and nothing of training"),
    Row(REVIEW, CS, '"search=yes, ai-train=yes"', "", "quotes around a yes"),
    Row(REVIEW, CS, "ai-train=\u201cyes\u201d", "", "curly quotes around a yes"),
    # --- Content-Usage, in the header
    Row(ATTACH, CU, "train-ai=n", "train-ai"),
    Row(ATTACH, CU, "search=y, train-ai=n", "train-ai"),
    Row(REVIEW, CU, "train-ai=N", "train-ai"),
    Row(REVIEW, CU, 'train-ai="n"', "train-ai"),
    Row(REVIEW, CU, "Train-AI=n", "train-ai"),
    Row(FIELDS, CU, "train-ai=?0", "train-ai"),
    Row(FIELDS, CU, "train-ai=n;ex=1, search=y", "train-ai"),
    Row(FIELDS, CU, "search=y;train-ai=n, train-ai=y", "train-ai", "two readings"),
    Row(VOCAB, CU, "train-ai=no", "train-ai", "the token of the other draft"),
    Row(VOCAB, CU, "train-genai=N", "train-ai"),
    Row(VOCAB, CU, "genai=n, search=y", "train-ai"),
    Row(VOCAB, CU, "bots=n", "any-use"),
    Row(VOCAB, CU, "TDM=N", "any-use"),
    Row(VOCAB, CU, 'all="n"', "any-use"),
    Row(REVIEW, CU, "ai=n", "any-use"),
    Row(REVIEW, CU, "AI=No", "any-use", "content-usage test of a scanner"),
    Row(REVIEW, CU, "train-ai=disallow", "train-ai", "content-usage test of a scanner"),
    Row(VOCAB, CU, "ai=?0;x", "any-use"),
    Row(VOCAB, CU, "bots=some", "unread"),
    Row(VOCAB, CU, "train-ai=x", "unread"),
    Row(VOCAB, CU, "train ai", "unread"),
    Row(ATTACH, CU, "train-ai=y", ""),
    Row(VOCAB, CU, "train-ai=Y, bots=n", "", "the narrower word"),
    Row(VOCAB, CU, "search=n", ""),
    Row(VOCAB, CU, "ai-use=n, search=n", ""),
    Row(VOCAB, CU, "ai=y", ""),
    Row(FIELDS, CU, "train-ai;allow=n, train-ai=y", "", "a parameter of another name"),
    Row(FIELDS, CU, "", ""),
    Row(VOCAB, CU, 'Train-AI="Y"', ""),
    Row(VOCAB, CU, "train-ai=?1;since=2026", ""),
    Row(FIELDS, CU, "x=(train-ai n), search=y", "", "a list of words"),
    # --- X-Robots-Tag
    Row("Sheezy-Art/sheezy-hub#499", XR, "noai, noimageai", "noai"),
    Row(REVIEW, XR, "noai;noimageai", "noai"),
    Row(REVIEW, XR, "NoAI;NoImageAI", "noai"),
    Row(REVIEW, XR, "noindex;noarchive", "noindex"),
    Row(REVIEW, XR, "index; noimageai", "noai"),
    Row(REVIEW, XR, "index follow noimageai", "noai"),
    Row(REVIEW, XR, "noai | noimageai", "noai"),
    Row(REVIEW, XR, '"noai, noimageai"', "noai", "nginx add_header"),
    Row(REVIEW, XR, "'noai'", "noai", "nginx add_header"),
    Row(REVIEW, XR, "\u201cnoai\u201d", "noai"),
    Row(REVIEW, XR, "no-ai", "noai"),
    Row(REVIEW, XR, "no_index, no_follow", "noindex"),
    Row(REVIEW, XR, "noai=1", "noai"),
    Row(REVIEW, XR, "noai: true", "noai"),
    Row(REVIEW, XR, "all\tNOAI", "noai"),
    Row("Mojeek/noml-open-letter#30", XR, "noindex, nofollow, noml", "noindex"),
    Row("rom1504/img2dataset#365", XR, "noml", "noai"),
    Row("mdn/content#37079", XR, "BadBot: nofollow, clipmill-test: noindex", "noindex"),
    Row("mdn/content#37079", XR, '"clipmill-test": noai', "noai"),
    Row("mdn/content#37079", XR, "max-image-preview:large; noai", "noai"),
    Row("mdn/content#37079", XR, "unavailable_after: 25 Jun 2030 15:00:00 PST; noai", "noai"),
    Row("mdn/content#37079", XR, "googlebot: nofollow", ""),
    Row("mdn/content#37079", XR, "BadBot: noindex, nofollow", ""),
    Row("mdn/content#37079", XR, "googlebot: noindex; noai", "", "one group, as with commas"),
    Row(GOOGLE, XR, "max-image-preview:none", ""),
    Row(GOOGLE, XR, "max-image-preview=none; all", ""),
    Row(GOOGLE, XR, "max_image_preview: none", ""),
    Row(GOOGLE, XR, "index, follow", ""),
    Row(GOOGLE, XR, "nofollow, nosnippet", ""),
    Row(REVIEW, XR, "noairplanes; nonesuch", ""),
    Row(REVIEW, XR, "", ""),
    Row(GOOGLE, XR, "max-snippet:-1; max-video-preview:-1", ""),
    Row("mdn/content#37079", XR, "'all'", ""),
    # --- TDM-Reservation, the header
    Row(TDM, TR, "1", "tdm-reservation"),
    Row(TDM, TR, '"1"', "tdm-reservation"),
    Row(REVIEW, TR, "true", "tdm-reservation", "header test of a crawler"),
    Row(REVIEW, TR, "TRUE", "tdm-reservation", "header test of a crawler"),
    Row(FIELDS, TR, "?1", "tdm-reservation"),
    Row(FIELDS, TR, "1.0", "tdm-reservation"),
    Row(FIELDS, TR, "1; policy=x", "tdm-reservation"),
    Row(TDM, TR, "0, 1", "tdm-reservation", "two headers in one line"),
    Row(REVIEW, TR, "yes", "tdm-reservation", "meta audit of a scanner"),
    Row(TDM, TR, "2", "unread"),
    Row(TDM, TR, "maybe", "unread"),
    Row(TDM, TR, "no", "unread", "no reservation, or no mining"),
    Row(TDM, TR, "0", ""),
    Row(TDM, TR, '"0"', ""),
    Row(TDM, TR, "false", ""),
    Row(TDM, TR, "?0", ""),
    Row(TDM, TR, "", ""),
    # --- robots.txt
    Row(CLOUDFLARE, ROBOTS,
        f"{ALL}Content-Signal: search=yes,ai-train=no\nAllow: /\n", "ai-train"),
    Row(REVIEW, ROBOTS, f"{ALL}Allow: /\nContent-Signal: search=yes, ai-train=No\n", "ai-train"),
    Row("Consensys-Incorporated/doc.teku#758", ROBOTS,
        f"CONTENT-SIGNAL: AI-TRAIN=NO\n{ALL}Allow: /\n", "ai-train", "in front of the groups"),
    Row(REVIEW, ROBOTS, f"{ALL}contentsignal: ai-train=no\n", "ai-train", "for C++"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Content-Signal:   ai-train = no  ,  search = yes  \n", "ai-train", "for C++"),
    Row(REVIEW, ROBOTS, f"{ALL}Content-Signal: ai-train=0\n", "ai-train", "for C++"),
    Row(REVIEW, ROBOTS, f"{ALL}Content-Signals: ai-train=no\n", "ai-train",
        "headers file of a site"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Allow: /\n\n# Content Signals\nsearch: yes\nai-train: no\n", "ai-train",
        "robots.txt of an Astro site"),
    Row(REVIEW, ROBOTS, f"{ALL}DisallowAITraining: /\nAllow: /\n", "train-ai"),
    Row(CANEL, ROBOTS,
        f"{ALL}AllowAITraining: /img/b\ndisallowaitraining: /img/ # pictures\n", "train-ai"),
    Row(CANEL, ROBOTS,
        f"{ALL}DisallowAITraining: /\nAllowAITraining: /img/\n", "", "the longest path"),
    Row(CANEL, ROBOTS, f"{ALL}DisallowAITraining: /private/\n", ""),
    Row(CANEL, ROBOTS, f"{ALL}DisallowAITraining:\n", ""),
    Row(CANEL, ROBOTS,
        f"User-agent: GPTBot\nDisallowAITraining: /\n\n{ALL}Allow: /\n", ""),
    Row(ATTACH, ROBOTS, f"{ALL}Content-Usage: /img/ TRAIN-AI=N\nContent-Usage: train-ai=y\n",
        "train-ai"),
    Row(ATTACH, ROBOTS, f"{ALL}Content-Usage: /other/ train-ai=n\n", ""),
    Row(SIGNALS, ROBOTS, f"{ALL}Content-Signal: ai-train=perhaps\n", "unread"),
    Row(SIGNALS, ROBOTS, f"{ALL}# Content-Signal: ai-train=no\n", "", "a comment"),
    Row("zeke/zeke.sikelianos.com#45", ROBOTS,
        f"{ALL}Content-Signal: search=yes, ai-train=yes\n", ""),
    Row(REVIEW, ROBOTS,
        f"{ALL}Allow: /\n\nUser-agent: GPTBot, ClaudeBot\nDisallow: /\n", "other-crawlers",
        "robots.txt with lists of names"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Allow: /\n\nUser-agent: \"CCBot\"\nDisallow: /\n", "other-crawlers",
        "robots.txt with lists of names"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Allow: /\n\nUSER-AGENT: IMG2DATASET, GPTBOT\nDISALLOW: /\n", "robots_txt",
        "robots.txt with lists of names"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Allow: /\n\nUser-agent: 'clipmill-test'\nDisallow: /img\n", "robots_txt",
        "robots.txt with lists of names"),
    Row(REVIEW, ROBOTS,
        f"User-agent: GPTBot\nAllow: /\n\n{ALL}Allow: /\n", "", "robots.txt with lists of names"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Content-Signal: ai-train=yes\n\nUser-agent: X\nUser-agent: GPTBot\nDisallow: /\n",
        "other-crawlers", "a signal ends the list of names"),
    Row(REVIEW, ROBOTS,
        f"{ALL}ai-train: yes\n\nUser-agent: CCBot\nDisallow: /\n", "other-crawlers",
        "groups of signals alone"),
    Row(REVIEW, ROBOTS,
        f"{ALL}AllowAITraining: /\n\nUser-agent: CCBot\nDisallow: /\n", "other-crawlers",
        "groups of signals alone"),
    Row(REVIEW, ROBOTS,
        f"{ALL}Allow: /\n\nUser-agent: Googlebot, Bingbot\nDisallow: /\n", "",
        "robots.txt with lists of names"),
    Row("pantheon-systems/documentation#10029", ROBOTS, f"{ALL}search: no\nai-input: no\n", ""),
    Row(REVIEW, ROBOTS,
        f"User-agent: Bingbot, clipmill-test\nAllow: /\n\n{ALL}Disallow: /x\n", "",
        "robots.txt with lists of names"),
    Row("LAW-Unimi/BUbiNG#17", ROBOTS, f"\ufeff{ALL}Disallow: /\n", "robots_txt", "a mark"),
    Row("scrapy/scrapy#6292", ROBOTS, f"{ALL}# f\xfcr\nDisallow: /img\n".encode("latin-1"),
        "robots_txt", "a byte that is not UTF-8"),
    Row("scrapy/scrapy#6292", ROBOTS, f"\ufeff{ALL}Disallow: /img\n".encode("utf-16-le"),
        "robots_txt", "UTF-16 with a mark"),
    Row("scrapy/scrapy#6292", ROBOTS, f"{ALL}Disallow: /img\n".encode("utf-16-be"),
        "robots_txt", "UTF-16 without a mark"),
    Row("google/robotstxt-java#8", ROBOTS, f"{ALL}Diasllow: /img\n", "robots_txt"),
    Row("bopoda/robots-txt-parser#16", ROBOTS, f"{ALL}Desallow: /img\n", "robots_txt"),
    Row("bopoda/robots-txt-parser#16", ROBOTS, f"{ALL}D i s a l l o w : /img\n", "robots_txt"),
    Row("bopoda/robots-txt-parser#16", ROBOTS, f"{ALL}Sitemap: /img\nnoallow: /x\n", ""),
    Row("fisharebest/webtrees#4972", ROBOTS, f"{ALL}Disallow /img\n", "robots_txt"),
    Row("bee4/robots.txt#6", ROBOTS, "    User-agent: *\n\n    Disallow: /img\n", "robots_txt"),
    Row("seomoz/reppy#113", ROBOTS, f"{ALL}Disallow: //\n", ""),
    Row("xroche/httrack#1695", ROBOTS,
        f"User-agent: clipmill-test\nDisallow: /x\n\n{ALL}Disallow: /img\n", "other-crawlers",
        "our group, then everybody's"),
    Row("crawler-commons/crawler-commons#112", ROBOTS,
        "User-agent: a\nDisallow: /img\n\n\nSitemap: https://www.x.example/sitemap.xml\n", ""),
    Row("andreburgaud/robotspy#223", ROBOTS,
        f"{ALL}Disallow: /x\n\nUser-agent: 5emeRue\nDisallow: /\n", "", "a digit in front"),
    Row("seomoz/reppy#113", ROBOTS, f"{ALL}Allowed: /img\nAlow: /img\n", ""),
    # --- tdmrep.json
    Row("healsdata/ai-training-opt-out: tdmrep.json", TDMREP,
        '[{"location": "/", "tdm-reservation": 1}]', "tdm-reservation"),
    Row(REVIEW, TDMREP, '[{"location": "/", "tdm-reservation": true}]', "tdm-reservation"),
    Row(REVIEW, TDMREP, '[{"location": "/", "tdm-reservation": 1.0}]', "tdm-reservation"),
    Row(REVIEW, TDMREP, '[{"location": "/", "tdm-reservation": "1"}]', "tdm-reservation"),
    Row(REVIEW, TDMREP, '[{"location": "/", "tdm-reservation": "True"}]', "tdm-reservation"),
    Row(REVIEW, TDMREP, '[{"Location": "/", "TDM-Reservation": 1}]', "tdm-reservation"),
    Row("sockrockets/sockrocket: tdmrep.json", TDMREP,
        '{"list": [{"path": "/", "tdm-reservation": true}]}', "tdm-reservation"),
    Row("moxiespirit/oathscore: tdmrep.json", TDMREP,
        '{"tdm_reservation": 1, "tdm_policy": "https://x.test/terms"}', "tdm-reservation"),
    Row("Farhanul199/WhereWePraying: tdmrep.json", TDMREP,
        '{"policies": [{"location": "/*", "tdm-reservation": "1"}]}', "tdm-reservation",
        "its form, for the whole site"),
    Row(REVIEW, TDMREP,
        '{"policies": {"default": {"tdm-reservation": "true"}}}', "tdm-reservation",
        "nested policies of a scanner"),
    Row(REVIEW, TDMREP, '{"/": {"tdm-reservation": 0}, "/img/": {"tdm-reservation": 1}}',
        "tdm-reservation", "rules by path"),
    Row(REVIEW, TDMREP, '[7, {"location": "/img/", "tdm-reservation": 1}]',
        "tdm-reservation", "the other rule is heard"),
    Row(REVIEW, TDMREP,
        '[{"location": "/b", "tdm-reservation": 0}, {"location": "/img/", "tdm-reservation": 0},'
        ' {"location": "/img/", "tdm-reservation": 1}]', "tdm-reservation", "rules of one length"),
    Row(REVIEW, TDMREP, '[{"location": ["/a", "/img"], "tdm-reservation": 1}]',
        "tdm-reservation", "a list of locations"),
    Row("ShankarPrasadk/tn_election_dashboard: tdmrep.json", TDMREP,
        '{"policies": [{"type": "tdm-reservation", "status": "disallowed", "scope": "/**"}]}',
        "unread"),
    Row(TDM, TDMREP, '[{"location": "/", "tdm-reservation": "ask"}]', "unread"),
    Row(REVIEW, TDMREP, '[7, {"location": "/", "tdm-reservation": 0}]', "unread", "one bad rule"),
    Row("OR13/vibeslop.ceo: tdmrep.json", TDMREP,
        '{"tdmrep": [{"location": "/", "tdm-reservation": 0}]}', ""),
    Row("AtsutaEito/ai-co-creation: tdmrep.json", TDMREP,
        '{"tdm-reservation": 0, "policy": "https://x.test/TERMS-AI.txt"}', ""),
    Row(TDM, TDMREP, '[{"location": "/", "tdm-reservation": false}]', ""),
    Row(TDM, TDMREP, '[{"location": "/", "tdm-reservation": "0"}]', ""),
    Row(TDM, TDMREP, '[{"location": "/docs/", "tdm-reservation": 1}]', ""),
    Row(REVIEW, TDMREP, '{"/": {"tdm-reservation": false}}', "", "rules by path"),
    Row(TDM, TDMREP, "[]", ""),
    Row(REVIEW, TDMREP, "<!doctype html><p>tdm-reservation 1", "", "a page for every path"),
    Row("YHDP/regenstudio-website: tdmrep.json", TDMREP,
        '[{"location": "/dpa-*", "tdm-reservation": 1}, {"location": "/", "tdm-reservation": 0}]',
        ""),
    # --- ai.txt
    Row(REVIEW, AI, "User-Agent: *\nDisallow: *.jpg\nDisallow: /\n", "ai.txt",
        "spawning ai.txt generator"),
    Row(REVIEW, AI, "USER-AGENT: *\nDISALLOW: *.JPG\n", "ai.txt", "spawning ai.txt generator"),
    Row(REVIEW, AI, 'User-Agent: "*"\nDisallow: "/"\n', "ai.txt", "spawning ai.txt generator"),
    Row(REVIEW, AI, "ai-train: no\nsearch: yes\n", "ai.txt", "fix pack generator"),
    Row("12fdk/home-stories.12f.dk: ai.txt", AI, "Use: allow\nTraining: disallow\n", "ai.txt",
        "its form, with a no"),
    Row(REVIEW, AI, "User-Agent: *\nAllow: /\nContent-Signal: ai-train=N", "ai.txt",
        "ai.txt with signals"),
    Row(REVIEW, AI, "User-Agent: X, img2dataset\nDisallow: /\n", "ai.txt",
        "ai.txt with lists of names"),
    Row("12fdk/home-stories.12f.dk: ai.txt", AI, "Use: allow\nTraining: allow\n", ""),
    Row("0rli-E/FRQNCY-Website: ai.txt", AI,
        "User-Agent: GPTBot\nAllow: /\n\nUser-Agent: Bytespider\nDisallow: /\n", ""),
    Row("Batsave/UIX-Recap: ai.txt", AI, "User-agent: *\nAllow: /\n", ""),
    Row("ArtSabintsev/sabintsev.com: ai.txt", AI, "# A name\n\n> No training of staff here\n", ""),
    Row("0rli-E/FRQNCY-Website: ai.txt", AI, "User-Agent: *\nDisallow: /social/\n", ""),
]  # fmt: skip
IDS = [f"{row.where} {row.text!r:.50} ({row.source})" for row in ROWS]
PATHS = {"/robots.txt": ROBOTS, "/.well-known/tdmrep.json": TDMREP, "/ai.txt": AI}


def jpeg() -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (40, 40), (90, 10, 10)).save(sink, "JPEG")
    return sink.getvalue()


class Web(BaseHTTPRequestHandler):
    """Host rN.test says what row N has."""

    def do_GET(self) -> None:
        row = ROWS[int(self.headers["Host"].split(".")[0][1:])]
        body, status = jpeg(), 200
        if self.path in PATHS:
            body = row.text if isinstance(row.text, bytes) else row.text.encode()
            status = 200 if row.where == PATHS[self.path] else 404
        self.send_response(status)
        if row.where not in PATHS.values() and self.path not in PATHS:
            self.send_header(row.where, row.text.encode().decode("latin-1"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def built(folder: Path, port: int, urls: list[str]) -> str:
    rows = pa.table({"url": urls, "caption": [f"picture {i}" for i in range(len(urls))]})
    disk.write_parquet(folder / "urls.parquet", rows)
    (folder / "r.yaml").write_text(f"""
name: asked
source: {{kind: table, paths: ["{folder}/urls.parquet"]}}
fetch: {{user_agent: "{AGENT}", allow_private: true, image_size: 16, concurrency: 8,
  connect_to: {{"*.test": "127.0.0.1:{port}"}}}}
""")
    pool = str(folder / "pool")
    words = [str(folder / "r.yaml"), "--out", pool, "--engine", "inline", "--until", "fetch"]
    assert commands.build(words) == 0
    return pool


def sidecars(pool: str) -> list[dict[str, Any]]:
    commits = read_commits(pool)
    tables = [disk.read_parquet(commits.sidecar(shard)) for shard in commits.names()]
    return [row for table in tables for row in table.to_pylist()]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    with serving(Web) as port:
        urls = [f"http://r{number}.test/img/a.jpg" for number in range(len(ROWS))]
        return {
            row["url"]: row for row in sidecars(built(tmp_path_factory.mktemp("c"), port, urls))
        }


@pytest.mark.parametrize("number", range(len(ROWS)), ids=IDS)
def test_a_spelling_is_heard_as_it_is_meant(
    outcomes: dict[str, dict[str, Any]], number: int
) -> None:
    outcome = outcomes[f"http://r{number}.test/img/a.jpg"]
    found = {each.signal for each in statements(json.loads(outcome["optout"] or "{}"), AGENT)}
    wanted = ROWS[number].outcome
    if wanted in ("", "unread", "other-crawlers"):
        assert (outcome["status"], found) == ("success", {wanted} - {""})
    else:
        assert outcome["reason"] in ("optout_header", "optout_site", "robots_txt")
        assert wanted in found


def test_a_third_of_the_rows_are_consent_or_silence() -> None:
    assert len(ROWS) >= 150
    assert sum(row.outcome == "" for row in ROWS) * 3 >= len(ROWS)


# --- spellings of hosts ---------------------------------------------------------------------------

HOSTS = [
    ("RFC 3986, 6.2.2.1", "http://b\u00fccher.test/", True, "as it is"),
    ("RFC 5891", "http://xn--bcher-kva.test/", True, "IDNA"),
    ("RFC 3986, 6.2.2.1", "HTTP://B\u00dcCHER.TEST/", True, "capitals"),
    ("RFC 3986, 6.2.2.1", "http://XN--BCHER-KVA.test/", True, "IDNA in capitals"),
    ("UTS 46", "http://bu\u0308cher.test/", True, "decomposed"),
    ("UTS 46", "http://\uff42\u00fc\uff43\uff48\uff45\uff52.test/", True, "full-width letters"),
    ("UTS 46", "http://b\u00fccher\u3002test/", True, "an ideographic stop"),
    ("RFC 3986, 3.2.2", "http://b%C3%BCcher.test/", True, "escapes"),
    ("RFC 3986, 2.1", "http://xn--bcher-kv%61.test/", True, "one escape"),
    ("RFC 1034", "http://b\u00fccher.test./", True, "a dot at the end"),
    ("RFC 3986", "http://me:pw@b\u00fccher.test:8080/", True, "user and port"),
    ("RFC 3986", "http://a@b@b\u00fccher.test/", True, "two users"),
    ("WHATWG URL", "http:\\\\b\u00fccher.test/", True, "backslashes"),
    ("WHATWG URL", "http:///b\u00fccher.test/", True, "three slashes"),
    ("WHATWG URL", " http://b\u00fc\tcher.test/", True, "a blank and a tab"),
    ("RFC 3986", "//b\u00fccher.test/", True, "no scheme"),
    ("RFC 3986", "ftp://img.b\u00fccher.test/", True, "a host in it, another scheme"),
    ("RFC 3986", "https://IMG.xn--bcher-kva.test?", True, "a host in it, no path"),
    ("RFC 3986", "http://bucher.test/", False, "another name"),
    ("RFC 3986", "http://notb\u00fccher.test/", False, "a longer label"),
    ("RFC 3986", "http://b\u00fccher.test.example/", False, "a longer name"),
    ("RFC 3986", "http://x.example/b\u00fccher.test/", False, "in the path"),
    ("RFC 3986", "http://x.example?b\u00fccher.test/", False, "in the query"),
    ("RFC 3986", "http://b\u00fccher.test@x.example/", False, "as a user"),
    ("RFC 3986", "/data/b\u00fccher.test/", False, "a path"),
]  # fmt: skip
SELECTORS = ["b\u00fccher.test", "B\u00dcCHER.Test.", "xn--bcher-kva.test", "bu\u0308cher.test",
             "b%C3%BCcher.test", "\uff42\u00fccher.test"]  # fmt: skip


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> str:
    pool = str(tmp_path_factory.mktemp("hosts") / "pool")
    with ShardWriter(PoolWriter(pool), 0, "task", "0") as writer:
        for i, (_, url, _, _) in enumerate(HOSTS):
            record = {"url": f"{url}{i}.jpg", "caption": f"c{i}", "uid": f"{i:032x}"}
            writer.add(i, record, audited.image_bytes(20, i))
        writer.commit(len(HOSTS))
    return pool


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_selector_in_any_spelling_fits_the_same_rows(hosts: str, selector: str) -> None:
    result = purge_rows(PoolWriter(hosts), read_criteria([f"domain={selector}"]), dry_run=True)
    assert result.rows == sum(fits for _, _, fits, _ in HOSTS)


@pytest.mark.parametrize("number", range(len(HOSTS)), ids=[f"{each[3]}" for each in HOSTS])
def test_a_purge_takes_every_spelling_of_a_host(hosts: str, number: int) -> None:
    if number == 0:
        assert commands.audit(["purge", hosts, f"domain={SELECTORS[0]}"]) == 0
    row = {row["uid"]: row for row in sidecars(hosts)}[f"{number:032x}"]
    assert (row["reason"] == "purged") is HOSTS[number][2]


# --- examples of reasons --------------------------------------------------------------------------

LINK = "https://img.gone.test/a.jpg"
EXAMPLES = [  # example, dropped by the URL, dropped by the domain
    ("warc page: LINK", f"https://page.test/p: {LINK!r}", True, True),
    ("table row", f"t.csv row 7: {LINK!r}", True, True),
    ("relative link", "https://img.gone.test/x/y.html: '../a.jpg'", True, True),
    ("page of the host", "https://gone.test/y.html: 'https://other.test/b.jpg'", False, True),
    ("IDNA and capitals", "https://page.test/p: 'HTTPS://IMG.GONE.test./b.jpg'", False, True),
    ("cut off", f"https://page.test/{'p' * 150}: 'https://img.gone.test/a…", True, True),
    ("cut off in the host", f"https://page.test/{'p' * 150}: 'https://img.go…", True, True),
    ("a longer URL", f"https://page.test/p: '{LINK}2'", False, True),
    ("another host", "https://page.test/p: 'https://img.kept.test/a.jpg'", False, False),
    ("no URL", "t.csv row 7", False, False),
    ("words", "'a picture of gone.test'", False, False),
]


@pytest.mark.parametrize("selector", [f"url={LINK}", "domain=Gone.test"])
@pytest.mark.parametrize("planned", [False, True])
def test_examples_with_a_purged_url_or_host_are_dropped(
    selector: str, planned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = str(tmp_path / "pool")
    if planned:
        audited.make(tmp_path / "pool")
    else:
        audited.write_pairs(pool, 5)
    path = PoolLayout(pool).pairs_part(0)
    metadata = disk.read_metadata(path)
    told = {name: text for name, text, _, _ in EXAMPLES}
    table = disk.read_parquet(path).replace_schema_metadata(None)
    disk.write_parquet(path, table, {**metadata, "examples": told})
    write_parts(PoolLayout(pool))
    assert commands.audit(["purge", pool, selector, "--dry-run"]) == 0
    assert disk.read_metadata(path)["examples"] == told
    assert commands.audit(["purge", pool, selector, "--json"]) == 0
    by_url = selector.startswith("url=")
    kept = {name: text for name, text, url, domain in EXAMPLES if not (url if by_url else domain)}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == len(told) - len(kept)
    assert disk.read_metadata(path)["examples"] == kept
    stored = disk.read_parquet(PoolLayout(pool).parts)
    assert stored.equals(read_parts(PoolLayout(pool)))
    assert dict(stored["examples"].to_pylist()[0]) == kept
    for file in Path(pool).rglob("*"):
        assert not file.is_file() or b"img.gone.test/a.jpg'" not in file.read_bytes()
    assert commands.audit(["purge", pool, selector]) == 0, "an earlier purge named it"


def test_a_killed_purge_of_examples_is_ended_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = str(tmp_path / "pool")
    rows = audited.write_pairs(pool, 5)
    path = PoolLayout(pool).pairs_part(0)
    table = disk.read_parquet(path).replace_schema_metadata(None)
    told = {"damaged": f"t.csv row 7: {LINK!r}", "no_alt": "t.csv row 8"}
    disk.write_parquet(path, table, {**disk.read_metadata(path), "examples": told})

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(purge, "purge_parquet", killed)
        with pytest.raises(KeyboardInterrupt):
            purge_rows(PoolWriter(pool), {"domain": {"gone.test"}})
    assert disk.read_metadata(path)["examples"] == told
    assert purge_rows(PoolWriter(pool), {"uid": {rows[0]["uid"]}}).examples == 0
    assert disk.read_metadata(path)["examples"] == {"no_alt": "t.csv row 8"}
    assert disk.read_parquet(path).num_rows == 4


# --- asked again ----------------------------------------------------------------------------------

NAMES = ("stays", "header", "robots", "tdm", "by-get", "gone", "busy", "moved")


class Later(BaseHTTPRequestHandler):
    """A web whose hosts say yes until `says_no` is set."""

    says_no: ClassVar[bool] = False
    asked: ClassVar[list[str]] = []

    def answer(self) -> None:
        name = self.headers["Host"].split(".")[0]
        self.asked.append(f"{self.command} {name} {self.path}")
        body, status, headers = jpeg(), 200, {}
        if self.path in PATHS:
            body, status = b"", 404
        if self.says_no:
            if name == "header" and self.path not in PATHS:
                headers["X-Robots-Tag"] = "NoAI;NoImageAI"
            elif name == "robots" and self.path == "/robots.txt":
                body, status = b"User-agent: *\nContent-Signal: ai-train=No\n", 200
            elif name == "tdm" and self.path.endswith("tdmrep.json"):
                body, status = b'{"tdm-reservation": true}', 200
            elif name == "by-get" and self.path not in PATHS:
                status = 405 if self.command == "HEAD" else 200
                headers["Content-Usage"] = "train-ai=N"
            elif name in ("gone", "busy") and self.path not in PATHS:
                status = 404 if name == "gone" else 503
            elif name == "moved" and self.path == "/a.jpg":
                headers["Location"], status = "http://header.test/b.jpg", 302
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(Later) as port:
        pool = built(tmp_path, port, [f"http://{name}.test/a.jpg" for name in NAMES])
        monkeypatch.setattr(Later, "says_no", True)
        Later.asked.clear()
        yield pool


def test_what_says_no_now_is_purged(later: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["status"] for row in sidecars(later)} == {"success"}
    capsys.readouterr()
    assert commands.audit(["consent", later, "--refresh", "--dry-run", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["answers"] == {
        "says no: optout_header: noai": 2, "says no: optout_site: ai-train": 1,
        "says no: optout_site: tdm-reservation": 1, "says no: optout_header: train-ai": 1,
        "no answer: http_4xx": 1, "no answer: http_5xx": 1, "allowed": 1,
    }  # fmt: skip
    assert "5 rows would be purged, 1 shards replaced; nothing was changed" in "\n".join(lines)
    assert {row["status"] for row in sidecars(later)} == {"success"}
    images = [each for each in Later.asked if not each.endswith(tuple(PATHS))]
    gets = {each for each in images if each.startswith("GET")}
    assert gets == {"GET by-get /a.jpg", "GET gone /a.jpg"}, "only where HEAD fails"
    assert commands.audit(["consent", later, "--refresh"]) == 0
    left = {row["url"] for row in sidecars(later) if row["status"] == "success"}
    assert left == {f"http://{name}.test/a.jpg" for name in ("stays", "gone", "busy")}
    assert "says no: optout_header: noai" in capsys.readouterr().out
    assert commands.audit(["consent", later, "--refresh"]) == 0
    assert "purged" not in capsys.readouterr().out, "the others are asked again, and stay"


def test_the_words_of_a_refresh_go_together(later: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--dry-run"], ["--refresh", "--out", "x.csv"]):
        assert commands.audit(["consent", later, *words]) == 2
        assert "--dry-run goes with --refresh only" in capsys.readouterr().err
    assert Later.asked == []
