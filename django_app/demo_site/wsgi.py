"""The WSGI application of the demo site.

Invariant: the same settings as every other process of the site.

Weakness: static files are the development server's business.
"""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_site.settings")

application = get_wsgi_application()
