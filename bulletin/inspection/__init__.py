"""What a run looks like to people: questions about records, manifests and islands' statuses.

The **view** is all that the log says at one moment; the modules around it answer one question each
(`rows`, `family`, `tensors`, `difference`, `ways`, `islands`, `storage`), as values, without I/O.
`follower` and `described` read the store for them, `skerry.bulletin.inspection.service` is the HTTP
face.  The command line asks the same modules.  Nothing here decodes a patch.
"""
