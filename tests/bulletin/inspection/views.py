"""Views of logs that tests build."""

from __future__ import annotations

from skerry.bulletin.inspection.view import View
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.store import ObjectStore
from tests.bulletin.log_builder import LogBuilder


def view_of(log: LogBuilder) -> View:
    return View().after(log.records, log.state)


def view_at(store: ObjectStore) -> View:
    reader = BulletinReader(store, history=True)
    reader.refresh()
    return View().after(reader.history, reader.state)
