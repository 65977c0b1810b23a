"""Tables and texts that other programs made: options, ids, joins by each key, bad files."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clipmill.filters import instances_of, make
from clipmill.filters.base import set_id
from clipmill.filters.table import Table
from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.commits import read_commits
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.schema import FilterSpec
from tests.support import commands
from tests.support.small_pool import Row, jpeg, make_pool


def spec(path: Path | str, name: str = "mine", **options: object) -> FilterSpec:
    given = {"paths": [str(path)], "take": {"score": "float"}, **options}
    return FilterSpec(name=name, kind="table", options=given)


def write_scores(path: Path, values: list[float]) -> None:
    pq.write_table(pa.table({"uid": ["ab" * 16] * len(values), "score": values}), path)


def test_columns_of_an_instance_carry_its_name(tmp_path: Path) -> None:
    take = {"clip": "clip_l14_similarity_score:float", "l14_img": "fp16[768]", "faces": "json"}
    (instance,) = instances_of([spec(tmp_path, "datacomp", take=take)]).values()
    assert instance.columns() == {
        "datacomp_clip": pa.float64(),
        "datacomp_l14_img": pa.list_(pa.float16(), 768),
        "datacomp_faces": pa.string(),
    }
    assert isinstance(instance.filter, Table)
    assert instance.filter.source_columns()["clip"] == "clip_l14_similarity_score"


def test_the_id_is_that_of_the_content_whatever_the_folder(tmp_path: Path) -> None:
    ids = []
    for folder, values in (("a", [0.5]), ("b", [0.5]), ("c", [0.25])):
        (tmp_path / folder).mkdir()
        write_scores(tmp_path / folder / "x.parquet", values)
        ids.append(set_id(make(spec(tmp_path / folder))))
    assert ids[0] == ids[1] != ids[2]
    assert set_id(make(spec(tmp_path / "a", key="other"))) != ids[0]
    assert make(spec(f"{tmp_path}/a/*.parquet")).identity() == make(spec(tmp_path / "a")).identity()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no table at"):
        make(spec(tmp_path / "none")).identity()
    write_scores(tmp_path / "x.parquet", [0.5])
    with pytest.raises(ValueError, match=r"x\.npz is missing"):
        make(spec(tmp_path, take={"l14_img": "fp16[8]"})).identity()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows 0 and 1 have one image, as have 4 and 5; row 3 is not stored."""
    given = []
    for number in range(7):
        image = jpeg(number // 2)
        sha256 = None if number == 3 else hashlib.sha256(image).hexdigest()
        reason = "http_4xx" if number == 3 else None
        given.append(
            Row(caption=f"raw {number}", image=image, reason=reason, more={"sha256": sha256})
        )
    return make_pool(tmp_path_factory.mktemp("pools") / "pool", given, per_shard=3)


def sidecars(pool: str) -> pa.Table:
    commits = read_commits(pool)
    return pa.concat_tables([disk.read_parquet(commits.sidecar(int(s))) for s in commits.shards])


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    else:
        mark, quote = (",", '"') if path.suffix == ".csv" else ("\t", "")
        lines = [mark.join(rows[0])]
        for row in rows:
            texts = [(value or "").replace('"', quote * 2 or '"') for value in row.values()]
            lines.append(mark.join(f"{quote}{text}{quote}" for text in texts))
        path.write_text("\ufeff" + "\r\n".join(lines))


def scored(
    pool: str, path: Path, capsys: pytest.CaptureFixture[str], **options: Any
) -> tuple[list[Any], dict[str, Any]]:
    """(the column of all rows, what `clipmill score --json` says of the join)."""
    recipe = path.parent / f"{path.name}.yaml"
    given = {"paths": path.name, **options}
    recipe.write_text(
        "name: r\nsource: {kind: files, paths: [x.csv]}\n"
        f"filters: [{{written: {{caption_file: {json.dumps(given)}}}}}]\n"
    )
    argv = [pool, "--recipe", str(recipe), "--engine", "inline", "--json"]
    assert commands.score(argv) == 0
    report = json.loads(capsys.readouterr().out)
    (name,) = report["sets"]
    files = AlignedFiles.of_scores(PoolLayout(pool), name)
    values: list[Any] = []
    for shard in read_commits(pool).shards.tolist():
        values += files.read(shard)[0]["written"].to_pylist()
    return values, report["joined"].get(name, {})


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("by", ["uid", "url", "sha256"])
def test_a_text_goes_to_the_rows_that_its_key_names(
    pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, by: str
) -> None:
    sidecar = sidecars(pool)
    keys = sidecar[by].to_pylist()
    rows = []
    for number in (6, 0, 5, 2):
        line = " " if ending == ".tsv" else "\n"
        text = None if number == 5 else f'a "small", dög{line}of {number} {ending}'
        rows.append({"their_key": keys[number], "text": text})
    other = {"uid": "00" * 16, "url": "https://nowhere/", "sha256": "AB" * 32}[by]
    rows += [{"their_key": keys[0], "text": "second"}, {"their_key": other, "text": "nobody"}]
    path = tmp_path / f"captions{ending}"
    write(path, rows)
    values, joined = scored(pool, path, capsys, by=by, key="their_key", column="text")
    expected: list[str | None] = [None] * 7
    for number in (0, 2, 6):
        expected[number] = rows[[6, 0, 5, 2].index(number)]["text"]
    if by == "sha256":  # every row with the image has its text
        expected[1] = expected[0]
    assert values == expected
    assert joined == {
        "by": by, "table_rows": 6, "keys": 5, "pool_rows": 6,
        "matched_rows": 6 if by == "sha256" else 4, "missing_keys": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"uid,caption\n%s,a\xff\n", r"a\.csv: column 'caption' is not UTF-8"),
        ("a.csv", b"uid,caption\n%s,a,b\n", r"a\.csv: its row 1 cannot be read"),
        ("a.csv", b"uid,captions\n%s,a\n", "no column 'caption'; did you mean 'captions'"),
        ("a.csv", b"uid,caption\n12,a\n", "a uid does not have 32 hex digits"),
        ("a.jsonl", b'{"uid": "%s", "caption": "a"}\n{"uid": \n', "its row 2 cannot be read"),
        ("a.jsonl", b'["%s"]\n', "its row 1 cannot be read"),
        ("a.jsonl", b'{"uid": "%s", "caption": "\xc3"}\n', "column 'caption' is not UTF-8"),
        ("a.jsonl", b'{"uid": "%s", "caption": ["x"]}\n', "is not of type string"),
        ("a.jsonl", b'{"caption": "a"}\n{"uid": "%s", "caption": "a"}', "does not have 32 hex"),
        ("a.parquet", b"PAR1 %s", r"a\.parquet is (damaged|no)"),
    ],
)
def test_a_bad_file_is_an_error_with_the_place(
    pool: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    message: str,
) -> None:
    uid = sidecars(pool)["uid"][0].as_py().encode()
    (tmp_path / name).write_bytes(content.replace(b"%s", uid))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "name: r\nsource: {kind: files, paths: [x.csv]}\n"
        f"filters: [{{caption_file: {{paths: [{name}]}}}}]\n"
    )
    assert commands.score([pool, "--recipe", str(recipe), "--engine", "inline"]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_id_is_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    row = '{"uid": "%032d", "caption": "dog"}\n'
    path.write_text("".join(row % i for i in range(9000)))  # more than the end that is hashed
    first = set_id(make(FilterSpec(name="caption_file", options={"paths": [str(path)]})))
    path.write_text(path.read_text().replace("dog", "cat", 1))
    assert set_id(make(FilterSpec(name="caption_file", options={"paths": [str(path)]}))) != first
