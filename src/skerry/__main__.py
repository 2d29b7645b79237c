"""`python -m skerry`."""

from skerry.cli import main

raise SystemExit(main())
