"""The server as a person asks it, and as an attacker on the same machine or a page of another site
would."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from clipmill.manifests import disk
from clipmill.manifests.aligned import AlignedFiles
from clipmill.manifests.layout import PoolLayout
from clipmill.manifests.pool import score_set_names
from clipmill.manifests.records import ScoreSetDocument, read_document
from clipmill.pipeline.audit.purge import purge_rows, read_criteria
from clipmill.pipeline.look.page import NoImage, page_data, render
from clipmill.pipeline.look.server import Alike, Answers, Changed, make_server
from clipmill.pipeline.look.survey import Survey, survey_pool
from clipmill.pipeline.pool.lease import PoolWriter
from tests.support import looked, purged
from tests.support.bundles import write_scores


@pytest.fixture(scope="module")
def answers(survey: Survey) -> Answers:
    return Answers(survey)


@pytest.fixture(scope="module")
def port(survey: Survey, answers: Answers) -> Iterator[int]:
    with make_server(answers, render(survey, page_data(survey))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("view", ["", "basic", "top", "drawn"])
def test_counts_of_a_typed_number_are_exact(answers: Answers, survey: Survey, view: str) -> None:
    values = np.asarray(survey.rows.table["original_width"].fill_null(-1).to_numpy())
    scope = survey.scope(view, "original_width")
    for text in ("0", "250", "250.5", "1e9", "-3"):
        answer = answers.count("original_width", view, text)
        assert answer["below"] == (scope & (values < float(text))).sum()
        assert answer["values"] == answer["rows"] == scope.sum()
        assert all(one["values"]["original_width"] < float(text) for one in answer["low"])
        assert all(one["values"]["original_width"] >= float(text) for one in answer["high"])


def test_a_search_counts_all_rows_and_lists_some(answers: Answers, survey: Survey) -> None:
    captions = survey.rows.table["caption"].to_pylist()
    expected = []
    for row in np.flatnonzero(survey.rows.stored).tolist():
        if "dog dog dog" in captions[row].lower():
            expected.append(row)
    found = answers.search("Dog dog DOG", "")
    assert found["count"] == len(expected)
    rows = [survey.rows.row_at(one["shard"], one["row"]) for one in found["images"]]
    assert rows == expected
    assert answers.search("dog", "basic")["count"] < answers.search("dog", "")["count"] == 46
    assert [one["row"] for one in answers.search("onerror", "")["images"]] == [1]
    for text in ("%", "' OR 1=1 --"):  # no pattern, no SQL
        assert answers.search(text, "")["count"] == 0


def test_a_purged_row_is_not_shown_any_more(tmp_path: Path) -> None:
    pool = purged.make(tmp_path / "pool", 24)
    survey = survey_pool(pool)
    answers = Answers(survey)
    row = int(np.flatnonzero(survey.rows.stored)[0])
    shard, of_shard = survey.rows.location(row)
    url = survey.rows.table["url"][row].as_py()
    caption = survey.rows.table["caption"][row].as_py()
    assert answers.image(shard, of_shard)
    assert answers.search(caption, "")["images"]
    purge_rows(PoolWriter(pool), read_criteria([f"url={url}"]))
    with pytest.raises(NoImage):
        answers.image(shard, of_shard)
    with pytest.raises(Changed):
        answers.search(caption, "")
    after = survey_pool(pool)
    assert Answers(after).search(caption, "")["count"] == 0
    assert not after.rows.stored[row]
    assert looked.sidecars(pool)["caption"][row].as_py() is None


def with_embeddings(pool: str) -> np.ndarray:
    """Adds a column of embeddings to the pool's score set; (rows, 4) what they are."""
    (name,) = score_set_names(PoolLayout(pool))
    layout = PoolLayout(pool)
    vectors = np.random.default_rng(3).normal(size=(20, 4)).astype(np.float16)
    files, shards = AlignedFiles.of_scores(PoolLayout(pool), name), {}
    for shard in (0, 1):
        table, metadata = files.read(shard)
        flat = pa.array(vectors[10 * shard : 10 * shard + 10].reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, 4)
        shards[shard] = table.append_column("embed_image", column), metadata
    write_scores(pool, name, shards)
    path = layout.score_set_json(name)
    document = disk.to_plain(read_document(path, ScoreSetDocument))
    document["columns"] = [*document["columns"], "embed_image"]
    disk.write_json(path, document, sealed=True)
    return vectors


def test_the_nearest_by_cosine(tmp_path: Path) -> None:
    pool = looked.make(tmp_path / "pool", 20)
    assert Alike.of_survey(survey_pool(pool)) is None
    vectors = with_embeddings(pool).astype(np.float64)
    survey = survey_pool(pool)
    alike = Alike.of_survey(survey)
    assert alike is not None
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = np.flatnonzero(survey.rows.stored)
    for row in stored.tolist():
        likeness = unit[stored] @ unit[row]
        expected = [int(one) for one in stored[np.argsort(-likeness)] if one != row]
        assert alike.nearest(row, 5) == expected[:5]
    with pytest.raises(ValueError, match="not among those"):
        alike.nearest(4)
    assert len(alike.nearest(0, 100)) == 15


# --- requests -------------------------------------------------------------------------------------


def ask(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    try:
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def answer(port: int, path: str) -> Any:
    status, _, body = ask(port, path)
    assert status == 200, body
    return json.loads(body)


def test_the_page_and_its_answers(port: int) -> None:
    for host in ("127.0.0.1", "localhost"):
        status, headers, body = ask(port, "/", headers={"Host": f"{host}:{port}"})
        assert status == 200
        assert b'"server":true' in body
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    count = answer(port, "/count?column=original_width&view=basic&value=250")
    assert count["below"] < count["values"]
    assert answer(port, "/count?column=caption_chars&value=0")["below"] == 0
    assert answer(port, "/search?text=dog&view=")["count"] == 46
    status, headers, body = ask(port, "/image/0/3")
    assert (status, headers["Content-Type"], body[:2]) == (200, "image/jpeg", b"\xff\xd8")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/image/0/4", 404),  # not stored
        ("/image/0/2", 404),  # damaged
        ("/image/0/10", 404),
        ("/image/00/99999", 404),
        ("/image/../../etc/passwd", 404),
        ("/image/0/3/../../../pool.json", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", 404),
        ("//etc/passwd", 404),
        ("/shards/00000.tar", 404),
        ("/image/-1/0", 404),
        ("/count", 400),
        ("/count?column=caption_chars&view=", 400),
        ("/count?column=caption_chars&value=" + "9" * 400, 400),
        ("/count?column=height&view=&value=nan", 400),
        ("/count?column=height&value=1e999", 400),
        ("/count?column=height&value=1;DROP", 400),
        ("/count?column=height&view=no_view&value=1", 400),
        ("/count?column=caption&value=1", 400),
        ("/count?column=../../x&value=1", 400),
        ("/count?" + "a=1&" * 20, 400),
        ("/search?text=", 400),
        ("/search?text=" + "x" * 201, 400),
        ("/search?text=a&view=no_view", 400),
        ("/similar?shard=0&row=0", 400),
        ("/similar?shard=0", 400),
    ],
)
def test_what_it_does_not_answer(port: int, path: str, status: int) -> None:
    got, _, body = ask(port, path)
    assert got == status, body
    assert set(json.loads(body)) == {"error"}
    assert b"Traceback" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_only_get_is_answered(port: int, method: str) -> None:
    assert ask(port, "/", method)[0] == 405


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_gets_nothing(port: int, headers: dict[str, str]) -> None:
    filled = {name: value.format(port=port) for name, value in headers.items()}
    for path in ("/", "/image/0/3", "/search?text=dog"):
        status, _, body = ask(port, path, headers=filled)
        assert status == 403
        assert b"dog" not in body
