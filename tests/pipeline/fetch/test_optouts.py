"""The signals of a row are kept raw, and one policy says whether they refuse it."""

from __future__ import annotations

import json

import pytest

from pipeline.fetch.request import LONGEST_VALUE, OptoutPolicy, signals

AGENT = "clipmill/0.1 (+https://clipmill.example/bot)"


def test_signals_of_headers_and_page_are_kept_raw() -> None:
    headers = [
        ("X-Robots-Tag", "NoAI"),
        ("Server", "x"),
        ("x-robots-tag", "otherbot: none"),
        ("TDM-Policy", "p" * 9000),
    ]
    assert signals(headers, json.dumps({"meta": ["noarchive"]})) == {
        "x-robots-tag": ["NoAI", "otherbot: none"],
        "tdm-policy": ["p" * LONGEST_VALUE],
        "page": {"meta": ["noarchive"]},
    }
    assert signals([("Server", "x")], None) == {}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("respect", None),
        ("strict", ("optout_header", "x-robots-tag: noarchive")),
        ("ignore", None),
    ],
)
def test_the_policy_of_the_recipe_decides(policy: str, expected: tuple[str, str] | None) -> None:
    assert OptoutPolicy(AGENT, policy).refusal({"x-robots-tag": ["noarchive"]}) == expected


def test_a_policy_knows_the_names_that_address_it() -> None:
    policy = OptoutPolicy(AGENT, "respect")
    assert policy.names == ("clipmill", "img2dataset")
    for name in policy.names:
        assert policy.refusal({"x-robots-tag": [f"{name}: noai"]})
    assert policy.refusal({"x-robots-tag": ["otherbot: noai"]}) is None


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no opt-out policy 'polite'; there are respect"):
        OptoutPolicy(AGENT, "polite").refusal({})
