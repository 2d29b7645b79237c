"""Settings of the whole suite."""

import os

from hypothesis import settings

# How long an example takes says more about the machine than about the code.  CI judges a change by
# the same examples every time; a developer's runs go on looking for others.
settings.register_profile(
    "skerry", deadline=None, derandomize=os.environ.get("CI") == "true", print_blob=True
)
settings.load_profile("skerry")
