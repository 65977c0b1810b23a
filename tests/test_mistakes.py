"""What a person gets wrong is told in one line, with exit code 2, before or instead of any work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support import commands, small_pool


@pytest.fixture
def told(
    capsys: pytest.CaptureFixture[str],
) -> Callable[[Callable[[list[str]], int], Sequence[str]], str]:
    """Runs an entry that must fail as a person's mistake; gives its one line."""

    def call(main: Callable[[list[str]], int], words: Sequence[str]) -> str:
        capsys.readouterr()
        assert main([str(w) for w in words]) == 2
        lines = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")
        ]
        assert len(lines) == 1
        return lines[0]

    return call


RECIPE = """
name: r
source: {kind: shards, paths: [tars], extra_columns: {n: int}}
fetch: {max_pixels: 1M}
filters: [caption]
views: {v: [{r: n > 0}]}
"""
WEB = """
name: r
source: {kind: table, paths: [t.csv], extra_columns: {n: int}}
fetch: {max_bytes: 1M, user_agent: "test (+http://clipmill.example)"}
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (
            RECIPE,
            "{n: int}",
            "{Score: int, score: int}",
            "names 'Score' and 'score', which are one",
        ),
        (RECIPE, "{n: int}", "{aspect: float}", "'aspect', which every pool has a column of its"),
        (RECIPE, "{n: int}", "{URL_host: string}", "'URL_host', which every pool has a column"),
        (
            RECIPE,
            "{n: int}",
            "{page_host: string}",
            "rename it, as in source_page_host: page_host:",
        ),
        (RECIPE, "{n: int}", "{Caption_Words: int}", "'Caption_Words', which is a filter's column"),
        (RECIPE, "{n: int}", "{row: int}", "'row', which every pool has a column of its own for"),
        (RECIPE, "{n: int}", "{Position: int}", "'Position', which every pool has a column of its"),
        (RECIPE, "{r: n > 0}", '{"": n > 0}', "a rule is named ''; its name is the reason of the"),
        (RECIPE, "{r: n > 0}", '{" ": {view: v}}', "a rule is named ' '"),
        (
            RECIPE,
            "{r: n > 0}",
            "{r: {sample: yes}}",
            "views.v.r.sample is true; it must be a number",
        ),
        (
            RECIPE,
            "[caption]",
            "[{duplicate: {on: perceptual, radius: yes}}]",
            "radius is true: Input should be",
        ),
        (RECIPE, "1M", "yes", "fetch.max_pixels is true; it must be a whole number"),
        (
            RECIPE,
            "1M",
            "1" + "0" * 30,
            "max_pixels is 1000000000000000000000000000000; it must lie",
        ),
        (WEB, "max_bytes: 1M", "image_size: on", "fetch.image_size is true; it must be a whole"),
        (WEB, "max_bytes: 1M", "deadline_s: no", "fetch.deadline_s is false; it must be a number"),
        (WEB, "max_bytes: 1M", "allow_ports: [80, yes]", "fetch.allow_ports.1 is true; it must be"),
        (WEB, "max_bytes: 1M", "max_redirects: -1", "max_redirects is -1; it must lie in 0..100"),
        (WEB, "user_agent: ", "img2dataset_python: ", "user_agent"),
        (WEB, "{n: int}", "{MD5: string}", "'MD5'"),
        (WEB, "[t.csv]", "['t-{0..3.csv']", "r.yaml: source.paths: the braces of"),
        (WEB, "max_bytes: 1M", r'known_bad: "a\0"', r"r.yaml: line 4 holds '\x00', which no text"),
        (WEB, "max_bytes: 1M", "known_bad: .", "is a folder, not a regular file; give a regular"),
        (WEB, "max_bytes: 1M", "known_bad: t.csv", "line 1 is 'url,caption,n'; write a sha256"),
        (RECIPE, "[tars]", r'["\ud83d"]', r"r.yaml: line 3 holds '\ud83d', which no text"),
        (RECIPE, "fetch:", r'"\ud83d":', r"r.yaml: line 4 holds '\ud83d', which no text"),
        (RECIPE, "[caption]", "[captoin]", "recipe 'r': there is no filter 'captoin'; did you"),
    ],
)
def test_a_recipe_that_would_be_read_by_chance(
    told, tmp_path, text: str, old: str, new: str, message: str
) -> None:
    assert old in text
    text = text.replace(old, new)
    if "MD5" in text:
        text = text.replace("max_bytes", "compute_hash: md5, max_bytes")
        message = "names 'md5', the column of fetch.compute_hash"
    (tmp_path / "t.csv").write_text("url,caption,n\nhttp://127.0.0.1/,a,1\n")
    (tmp_path / "r.yaml").write_text(text)
    words = [tmp_path / "r.yaml", "--out", tmp_path / "pool", "--engine", "inline"]
    assert message in told(commands.build, words)
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("kind", "until", "first"),
    [("shards", "crawl", "fetch"), ("shards", "plan", "fetch"), ("lock", "crawl", "plan")],
)
def test_a_stage_that_a_source_does_not_have(
    told, tmp_path, kind: str, until: str, first: str
) -> None:
    agent = "fetch: {user_agent: 'test (+http://clipmill.example)'}\n" if kind == "lock" else ""
    (tmp_path / "r.yaml").write_text(f"name: r\nsource: {{kind: {kind}, paths: [there]}}\n{agent}")
    line = told(commands.build, [tmp_path / "r.yaml", "--out", tmp_path / "pool", "--until", until])
    assert line == (
        f"error: --until {until}: the first stage of a source of kind {kind} is {first}; "
        f"write --until {first}"
    )
    assert not (tmp_path / "pool").exists()


def test_a_pool_in_the_place_of_results(told, tmp_path) -> None:
    pool = small_pool.make_pool(tmp_path / "pool", small_pool.rows(3))
    (tmp_path / "pool" / "pool.json").write_text("{}")
    line = told(commands.decide, [pool])
    assert line.startswith(f"error: {pool} is a pool, which has no results: train arms on its")


def test_a_value_of_a_megabyte_leaves_the_line_short(told, tmp_path) -> None:
    """What is before and behind the value is still there."""
    (tmp_path / "r.yaml").write_text(RECIPE.replace("shards", "x" * 1_000_000))
    line = told(commands.build, [tmp_path / "r.yaml", "--out", tmp_path / "pool"])
    assert "r.yaml: source.kind is 'xxx" in line
    assert line.endswith("shards, lock")
    assert len(line) < 4100
