"""The views of a pool, and the document of one that was made of the shards that are there now."""

from __future__ import annotations

from manifests import disk
from manifests.documents import ViewDocument, read_document
from manifests.pool_layout import PoolLayout


def view_names(pool: str) -> list[str]:
    """The complete views of a pool. A folder whose name ends in .json is none."""
    folder = PoolLayout(pool).views
    names = []
    for file in disk.list_names(folder, ".json"):
        if disk.is_url(folder) or not disk.local_path(disk.join(folder, file)).is_dir():
            names.append(file.removesuffix(".json"))
    return names


def current_view(pool: str, view: str, fingerprint: str, remedy: str) -> ViewDocument:
    """The document of a view.

    ValueError where there is none; and where the pool's fingerprint is another one than the view's,
    with `remedy`: what to do then.
    """
    names = view_names(pool)
    if view not in names:
        suggestion = disk.did_you_mean(view, names)
        raise ValueError(
            f"{pool} has no view {view!r}{suggestion}; it has {', '.join(names) or 'none'}"
        )
    document = read_document(PoolLayout(pool).view_json(view), ViewDocument)
    if document.fingerprint != fingerprint:
        raise ValueError(
            f"view {view!r} of {pool} is stale: the pool's shards have changed; {remedy}"
        )
    return document
