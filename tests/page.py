"""The request of MindIE's API page, as printed there and as a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

PAGE_REQUEST: Final = (Path(__file__).parent / "data" / "page_request.json").read_bytes()
PAGE_DOCUMENT: Final[dict[str, Any]] = json.loads(PAGE_REQUEST)
