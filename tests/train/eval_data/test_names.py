from __future__ import annotations

from pathlib import Path

import pytest

from train.eval_data.samples import read_classes, read_templates


def test_the_lists_of_open_clip_have_its_names() -> None:
    import open_clip

    assert read_classes("imagenet") == tuple(open_clip.IMAGENET_CLASSNAMES)
    templates = read_templates("openai_imagenet")
    assert len(templates) == 80
    expected = [template("a fox") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
    assert [template.replace("{}", "a fox") for template in templates] == expected
    assert len(read_templates("simple_imagenet")) == 7


def test_files_hold_a_name_per_line_or_a_json_list(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffcat\r\ndog\n\nred fox\n".encode())
    assert read_classes(str(tmp_path / "a.txt")) == ("cat", "dog", "red fox")
    (tmp_path / "a.json").write_text('["a photo of a {c}.", "{}"]')
    assert read_templates(str(tmp_path / "a.json")) == ("a photo of a {}.", "{}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("imagenett", None, r"classes is 'imagenett'; .* did you mean 'imagenet'\?"),
        ("none.txt", None, r"none\.txt does not exist"),
        ("a.json", b'{"a": 1}', "must hold a JSON list of texts"),
        ("a.json", b"[1]", "must hold a JSON list of texts"),
        ("a.json", b"[", "is not JSON"),
        ("a.txt", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_what_is_no_list_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = str(tmp_path / name) if "." in name else name
    if content is not None:
        Path(path).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_classes(path)
