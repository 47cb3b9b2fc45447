"""The dashboard: pages for people who watch a consumer and act on its dead letters.

The server renders the pages. A script keeps them live by server-sent events, and uPlot draws the
plot; both are in `static`, so that no network and no build is needed.
"""

from eventonce.errors import ConfigError, install_hint

try:
    import starlette as starlette
    import uvicorn as uvicorn
except ModuleNotFoundError as error:
    raise ConfigError(f"dashboard needs: {install_hint('dashboard')}") from error

from eventonce.dashboard.app import dashboard
from eventonce.dashboard.resources import Resources

__all__ = ["Resources", "dashboard"]
