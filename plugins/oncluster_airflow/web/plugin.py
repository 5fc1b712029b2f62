"""What Airflow is told of the page: the application and the entry in its navigation.

Only the API server asks for them; the other processes that load the plugin do not pay for FastAPI.
"""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf

_NAME = "Clusters"
_ROUTE = "oncluster"


@functools.cache
def fastapi_apps() -> list[dict[str, Any]]:
    """For `AirflowPlugin.fastapi_apps`."""
    from oncluster_airflow.settings import Settings
    from oncluster_airflow.web.app import PREFIX, make_app
    from oncluster_airflow.web.place import place_of_airflow
    from oncluster_airflow.web.reader import LiveReader

    reader = LiveReader(place_of_airflow)
    docs_url = Settings.from_environment().docs_url
    app = make_app(reader, docs_url=docs_url, warm=reader.warm, close=reader.close)
    return [{"app": app, "url_prefix": PREFIX, "name": "oncluster"}]


@functools.cache
def external_views() -> list[dict[str, Any]]:
    """For `AirflowPlugin.external_views`: shown within Airflow's own frame."""
    root = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return [
        {
            "name": _NAME,
            "href": f"{root}/oncluster/",
            "url_route": _ROUTE,
            "destination": "nav",
            "nav_top_level": True,
        }
    ]
