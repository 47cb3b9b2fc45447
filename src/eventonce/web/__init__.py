"""The HTTP receiver: an ASGI app to serve by itself or to mount in another one."""

from eventonce.config import Serve
from eventonce.web.app import receiver

__all__ = ["Serve", "receiver"]
