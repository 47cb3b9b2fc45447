"""The HTTP receiver: an ASGI app to serve by itself or to mount in another one."""

from eventonce.config import Serve
from eventonce.errors import ConfigError

try:
    from eventonce.web.app import receiver
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "eventonce":
        raise
    raise ConfigError('eventonce.web needs: pip install "eventonce[web]"') from error

__all__ = ["Serve", "receiver"]
