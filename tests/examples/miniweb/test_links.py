"""A link and the names of the hosts."""

from __future__ import annotations

from examples.miniweb.links import HOSTS, Link, hosts_of


def test_there_are_as_many_hosts_as_wanted() -> None:
    for number in (1, 7, 9):
        assert len(set(hosts_of(number))) == number
    assert hosts_of(7) == HOSTS
    assert hosts_of(8)[7] == "site8.miniweb.test"


def test_a_link_has_no_port() -> None:
    link = Link(
        kind="clean", host="shop.miniweb.test", path="/img/a.jpg", caption="a", true_caption="a",
        right=True,
    )  # fmt: skip
    assert link.url == "http://shop.miniweb.test/img/a.jpg"
