"""The HTTP face of an inspection: JSON, events, and the page, read-only.

Needs the extra `skerry[inspect]`; nothing else in `skerry.bulletin` imports it.
"""
