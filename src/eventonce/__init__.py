"""Every contact-centre event takes effect once."""

__version__ = "0.1.0"
