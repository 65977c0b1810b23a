"""A YAML file: bounded aliases, no repeated keys, and a stated set of variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clipmill.manifests.reader import VARIABLES, expand_variables, merge, pick_scale, read_yaml


def read(folder: Path, text: str | bytes) -> dict[str, Any]:
    path = folder / "m.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def test_aliases_stand_for_what_they_name(tmp_path: Path) -> None:
    text = "a: &x {k: 1}\nb: *x\nc: {<<: *x, l: 2}\n"
    assert read(tmp_path, text) == {"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 1, "l": 2}}


def test_a_table_is_sent_to_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "urls.CSV"
    path.write_text("url,text\nhttp://a.example/1.jpg,a photo: of a cat\n")
    with pytest.raises(
        ValueError, match=r"urls\.CSV is a table; a recipe reads it: source: \{kind"
    ):
        read_yaml(path)


@pytest.mark.parametrize("form", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_cannot_explode(form: str, tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    for k in range(1, 30):
        lines.append(f"a{k}: &a{k} " + form.format(", ".join([f"*a{k - 1}"] * 9)))
    with pytest.raises(ValueError, match=r"m\.yaml: the aliases in line \d+ stand for more than"):
        read(tmp_path, "\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]", "an alias in line 1 stands for itself"),
        ("a: &a {b: *a}", "an alias in line 1 stands for itself"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is repeated in line 3"),
        ("views: {raw: [], raw: []}", "the key 'raw' is repeated in line 1"),
        ("on: 1\n'on': 2", "the key 'on' is repeated in line 2"),
        ("1.5: 1", "the key '1.5' in line 1 is not text to YAML; put it in quotes"),
        ("a:\n  2024: 1", "the key '2024' in line 2 is not text"),
        ("[1, 2]: 3", "is not text to YAML"),
        ("- 1", "holds no mapping of keys"),
        ("", "holds no mapping of keys"),
        ("a: [", "is not YAML"),
        ("a: !!python/object:os.system 1", "is not YAML"),
        (b"a: \xff", "is not YAML"),
        ("a: " + "[" * 5000, "is not YAML"),
        ("a: " + "[" * 3000 + "]" * 3000, "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    text: str | bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"m\.yaml") as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_the_encodings_of_yaml_are_read(encoding: str, tmp_path: Path) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert read(tmp_path, f"{mark}name: Größe\n".encode(encoding)) == {"name": "Größe"}


def test_a_scale_replaces_merges_and_removes() -> None:
    raw = {
        "a": {"x": 1, "y": 2},
        "b": [1],
        "scales": {"debug": {"a": {"y": None, "z": 3}, "b": [2]}},
    }
    assert pick_scale(raw, "debug", "m") == {"a": {"x": 1, "z": 3}, "b": [2]}
    assert pick_scale(raw, None, "m") == {"a": {"x": 1, "y": 2}, "b": [1]}
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    with pytest.raises(ValueError, match="m has no scale 'big'; it has debug"):
        pick_scale(raw, "big", "m")
    with pytest.raises(ValueError, match="scales is 'debug'; it must be a mapping"):
        pick_scale({"scales": "debug"}, None, "m")


@pytest.mark.parametrize("name", [*VARIABLES, "CLIPMILL_ANYTHING"])
def test_stated_variables_expand_anywhere_but_in_the_user_agent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "value")
    raw = {"paths": [f"${{{name}}}/a", "plain"], "n": 3}
    assert expand_variables(raw, "m.yaml") == {"paths": ["value/a", "plain"], "n": 3}
    agent = {"fetch": {"user_agent": f"me ${{{name}}}"}}
    with pytest.raises(ValueError, match=r"fetch\.user_agent names .* it is sent to every server"):
        expand_variables(agent, "m.yaml")


@pytest.mark.parametrize("name", ["HOME", "AWS_SECRET_ACCESS_KEY", "PATH"])
def test_other_variables_stay_out_of_manifests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "secret")
    with pytest.raises(
        ValueError, match=r"^m: source\.paths names .* names that begin with CLIPMILL_"
    ):
        expand_variables({"source": {"paths": [f"${{{name}}}"]}}, "m")


def test_a_word_that_yaml_takes_for_a_boolean_is_a_key(tmp_path: Path) -> None:
    text = "a: {on: embed, yes: {off: on}, <<: {no: 1}}\nb: on"
    content = read(tmp_path, text)
    assert content == {"a": {"on": "embed", "yes": {"off": True}, "no": 1}, "b": True}
