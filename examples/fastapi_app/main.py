"""A shop that is told of payments by webhooks, each of which takes effect once.

Served by `uvicorn --app-dir examples/fastapi_app main:app`; `run.py` plays it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from eventonce import Consumer, Job
from eventonce.web import Serve, receiver

consumer = Consumer("sqlite:///shop.db", name="shop", rules="standard-webhooks")
ledger: dict[str, int] = {}
"""The payments of each customer: the effect that copies must not have. In memory, to keep this
short."""


@consumer.on("invoice.paid")
async def book(job: Job) -> None:
    """One payment. A plain `def` would do as well, and run in a thread."""
    paid = job.event.detail["data"]
    ledger[paid["customer"]] = ledger.get(paid["customer"], 0) + paid["amount"]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The consumer is the application's, so the application closes it."""
    with consumer:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/hooks", receiver(consumer, Serve(webhook_secrets=[os.environ["WEBHOOK_SECRET"]])))


@app.get("/payments")
def payments() -> dict[str, int]:
    """A page of the application's own, beside the receiver."""
    return ledger
