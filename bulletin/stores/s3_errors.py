"""What botocore raises, as errors of the bulletin.

The message of a server or an SDK may repeat an address or a key id, so that only error codes and
the names of classes are passed on, and the original is not chained.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from skerry.bulletin.errors import (
    NotFound,
    OutcomeUnknown,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from skerry.bulletin.stores.web import retry_after

_CODE = re.compile(r"[A-Za-z0-9.]{1,64}")
_ABSENT = {"NoSuchKey", "NotFound", "404"}
_NEVER_ARRIVED = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
    boto.MetadataRetrievalError,
    boto.CredentialRetrievalError,
)
_SETTINGS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.NoRegionError,
    boto.ProfileNotFound,
    boto.ParamValidationError,
    boto.TokenRetrievalError,
    boto.SSOError,
)
# A body that breaks off while botocore reads it is urllib3's error, a cut one its parser's.
RAISED = (boto.ClientError, boto.BotoCoreError, ResponseParserError, HTTPError, OSError)


@contextmanager
def translated(key: str, *, write: bool) -> Iterator[None]:
    """Raise StoreError for what botocore raises inside; `write`: it may have changed something."""
    try:
        yield
    except RAISED as error:
        raise translate(key, error, write=write) from None


def translate(key: str, error: Exception, *, write: bool) -> StoreError:
    """Return the error of the bulletin that says the same."""
    unsettled = OutcomeUnknown if write else StoreUnavailable
    if isinstance(error, boto.ClientError):
        return _answered(key, error, unsettled)
    name = type(error).__name__
    if isinstance(error, _SETTINGS):
        return StoreDenied(key, f"the AWS settings of this process do not serve: {name}")
    if isinstance(error, _NEVER_ARRIVED):
        return StoreUnavailable(key, f"cannot be reached: {name}")
    if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StoreDenied(key, "the certificate of the store is not trusted")
    return unsettled(key, f"no answer, or one that broke off: {name}")


def code_of(error: boto.ClientError) -> str:
    """Return the error code of an answer, or its status where it has none that is a code."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code if _CODE.fullmatch(code) else str(status_of(error))


def status_of(error: boto.ClientError) -> int:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def _answered(
    key: str, error: boto.ClientError, unsettled: type[OutcomeUnknown | StoreUnavailable]
) -> StoreError:
    status, code = status_of(error), code_of(error)
    rule = f"{code}, HTTP status {status}"
    if code == "NoSuchBucket":
        return StoreDenied(key, "there is no such bucket")
    if code in _ABSENT or status == 404:
        return NotFound(key)
    # 409: the loser of a race that is not over.  A 5xx may come from in front of the store.
    if status in (0, 200, 408, 409, 425, 429) or status >= 500:
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return unsettled(key, rule, retry_after_s=retry_after(headers.get("retry-after")))
    if status in (301, 307, 308):
        return StoreDenied(key, f"the bucket is elsewhere, state its region: {rule}")
    return StoreDenied(key, rule)
