"""A run's log: its state, its reader, its writer.

The log is the only truth of a run: slot n is one record, written once and never deleted.  See
`docs/bulletin.md`.
"""

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.state import LogState
from skerry.bulletin.writer import BulletinWriter

__all__ = ["BulletinReader", "BulletinWriter", "LogState"]
