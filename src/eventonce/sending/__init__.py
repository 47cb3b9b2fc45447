"""Events put on a bus, a queue or a receiver, several times over: how one tries a set-up."""

from eventonce.sending.sender import Outgoing, Refusal, Summary, send_all

__all__ = ["Outgoing", "Refusal", "Summary", "send_all"]
